"""Goal: a push that is repeated is stored once, also when its message was deleted meanwhile and the node started anew;
its answer has the right index or none; and under rules nobody else can use up the numbers of a publisher.

Method: real nodes on both kinds of database, raw requests, and restarts. What is stored is counted by a pull.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route
from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest
from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from stream_client import Retention, connect
from stream_node.node.identity.token_services import token_file
from stream_service import publisher_rows
from stream_service.extensions import (
    DELETE,
    RETENTION,
    RICH_PUSH,
    TRUNCATE,
    BeforeIndex,
    DeleteRequest,
    Extras,
    FromIndex,
    RetentionRequest,
    RichPush,
    RichStatus,
    TruncateRequest,
    encode_extras,
)
from stream_service.extensions import Sequence as Number
from stream_service.publisher_rows import LOADED_MAX, MARK, list_publishers
from stream_service.workers import publisher_memory, sequence_machine
from stream_storage.contract import Append
from tests.ockam.identity.rules.guarded_node import Guarded, guarded, may
from tests.support.databases import open_database
from tests.support.rich import ask, data_of, info, pull, push
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import StreamPeer, stream_peer

pytestmark = pytest.mark.usefixtures("each_database")

OK, DUPLICATE, OUT_OF_ORDER = RichStatus.OK, RichStatus.DUPLICATE, RichStatus.OUT_OF_ORDER
WRITES = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE


async def push_numbers(
    peer: StreamPeer, route: Route, numbers: Sequence[int], by: bytes = b"p"
) -> list[tuple[int, int]]:
    """The status and the index of each push."""
    confirms = [await push(peer, route, b"%d" % number, sequence=(by, number)) for number in numbers]
    return [(confirm.status, confirm.index) for confirm in confirms]


async def truncate(peer: StreamPeer, route: Route, before: int) -> None:
    await ask(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(before)))


async def test_a_publisher_is_known_when_its_messages_are_deleted_and_the_node_started_anew(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push_numbers(peer, route, (7, 8, 9))
        await truncate(peer, route, 3)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        # The index of the last message is known; for the others the node says honestly none, which is 0.
        assert await push_numbers(peer, route, (7, 8, 9)) == [(DUPLICATE, 0), (DUPLICATE, 0), (DUPLICATE, 2)]
        assert await push_numbers(peer, route, (11, 10)) == [(OUT_OF_ORDER, 0), (OK, 3)]
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"10"]


async def test_after_a_partial_truncate_a_repeat_answers_right_indexes_or_none(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push(peer, route, b"other")
        await push_numbers(peer, route, (0, 1, 2))
        await truncate(peer, route, 3)
    async with served(tmp_path) as node, connect(node.address) as client:
        stream = await client.create("s")
        async with stream.publisher(publisher_id=b"p", first_number=0) as publisher:
            pushes = [await publisher.push(b"%d" % number) for number in range(4)]
        assert [each.index for each in pushes] == [-1, 2, 3, 4], "-1 is none"


async def test_retention_keeps_the_numbers_too(tmp_path: Path) -> None:
    async with served(tmp_path, retention_interval_s=0.02) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push_numbers(peer, route, range(5))
        await ask(peer, route, RETENTION, RetentionRequest(1, Retention(messages=1)))
        for _ in range(5):
            await push(peer, route, b"other")
        with trio.fail_after(PATIENCE_S):
            while (await info(peer, route)).first_index < 9:
                pass
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert (await push_numbers(peer, route, (4,)))[0][0] is DUPLICATE
        assert (await info(peer, route)).next_index == 10


async def test_a_stream_made_anew_knows_no_publisher(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push_numbers(peer, route, (4, 5))
        await truncate(peer, route, 1)
        await ask(peer, route, DELETE, DeleteRequest(1))
        route = await peer.create("s")
        assert await push_numbers(peer, route, (5,)) == [(OK, 0)]
    database = open_database(tmp_path)
    session = database.read_session()
    stream = session.log.find_stream("s", 0)
    assert stream is not None
    assert not list_publishers(session, stream.stream_id - 1), "nothing is left of the stream that was deleted"
    session.close()
    database.close()


async def test_a_publisher_is_known_behind_any_number_of_other_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a start searched the latest LOADED_MAX messages and forgot the rest."""
    monkeypatch.setattr(publisher_memory, "NOTED_EVERY", 10)
    monkeypatch.setattr("stream_service.publisher_rows.LOADED_MAX", 25)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push_numbers(peer, route, (0, 1))
        for _ in range(5):
            await peer.push_all(route, [b"x"] * 9)
        await push_numbers(peer, route, (2,))
        for _ in range(5):
            await peer.push_all(route, [b"x"] * 9)
    # In this life, nobody numbers: the rows are brought up to date all the same.
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        for _ in range(5):
            await peer.push_all(route, [b"x"] * 9)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert await push_numbers(peer, route, (1, 2, 3)) == [(DUPLICATE, 0), (DUPLICATE, 47), (OK, 138)]


@pytest.mark.parametrize("plain", [20, 40])
async def test_a_publisher_that_comes_after_many_plain_messages_is_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: int
) -> None:
    """Goal: a repeated push is a duplicate after a restart, also in a stream that had messages without a publisher
    first. Method: fewer and more of them than a start searches; then a push with a number, and many messages behind."""
    monkeypatch.setattr(publisher_memory, "NOTED_EVERY", 10)
    monkeypatch.setattr("stream_service.publisher_rows.LOADED_MAX", 25)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        for _ in range(plain // 5):
            await peer.push_all(route, [b"x"] * 5)
        assert await push_numbers(peer, route, (0,)) == [(OK, plain)]
        for _ in range(10):
            await peer.push_all(route, [b"x"] * 5)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert await push_numbers(peer, route, (0, 1)) == [(DUPLICATE, plain), (OK, plain + 51)]


async def test_a_database_without_rows_is_searched_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of an older version has numbers in its messages only. Rows of publishers that could be outdated count
    for nothing: a publisher that goes on is not told that its numbers have a gap."""
    assert LOADED_MAX >= 100_000
    monkeypatch.setattr("stream_service.publisher_rows.LOADED_MAX", 10)
    database = open_database(tmp_path)
    session = database.session()
    session.begin()
    stream = session.log.ensure_stream("s", 0, 1)
    numbers = [(b"old", 0), (b"old", 1), *((b"new", number) for number in range(18))]
    headers = [encode_extras(Extras([], Number(*each))) for each in numbers]
    session.log.append([Append(stream.stream_id, 0, 1, [b"x"] * 20, [None] * 20, headers)])
    session.commit()
    session.close()
    database.close()
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await truncate(peer, route, 1)
        assert await push_numbers(peer, route, (17, 18), b"new") == [(DUPLICATE, 19), (OK, 20)]
        assert await push_numbers(peer, route, (2,), b"old") == [(OK, 21)]
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert await push_numbers(peer, route, (2, 3), b"old") == [(DUPLICATE, 21), (OK, 22)]


async def test_the_rows_are_bounded_in_number_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_rows, "PUBLISHERS_MAX", 5)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        for number in range(20):
            await push_numbers(peer, route, (0,), b"p%02d" % number)
        await truncate(peer, route, 20)
    rows = stored_rows(tmp_path)
    assert [each for each in rows if len(each) < 10] == [b"p%02d" % number for number in range(16, 20)], "and the mark"
    monkeypatch.setattr("stream_service.workers.clock.FORGET_S", -3600)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push_numbers(peer, route, (0,), b"last")
        await truncate(peer, route, 21)
    assert [each for each in stored_rows(tmp_path) if len(each) < 10] == []


def stored_rows(data_dir: Path) -> list[bytes]:
    database = open_database(data_dir)
    session = database.read_session()
    stream = session.log.find_stream("s", 0)
    assert stream is not None
    try:
        return list(list_publishers(session, stream.stream_id))
    finally:
        session.close()
        database.close()


async def test_a_damaged_row_costs_what_it_says_and_not_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody goes on, messages can be deleted, and the next rows take the place of the damaged ones."""
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await push_numbers(peer, route, (0, 1))
        await push_numbers(peer, route, (0, 1), b"q")
        await truncate(peer, route, 3)
    database = open_database(tmp_path)
    session = database.session()
    stream = session.log.find_stream("s", 0)
    assert stream is not None
    rows = publisher_rows.list_publishers(session, stream.stream_id)
    session.begin()
    with monkeypatch.context() as wrong:
        wrong.setattr(publisher_rows, "seal_of", lambda table, values: 7)
        publisher_rows.write_publishers(session, stream.stream_id, {b"p": rows[b"p"], MARK: rows[MARK]}, 1)
    session.commit()
    session.close()
    database.close()
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert await push_numbers(peer, route, (1, 2), b"q") == [(DUPLICATE, 3), (OK, 4)]
        assert await push_numbers(peer, route, (2, 3)) == [(OK, 5), (OK, 6)]
        await truncate(peer, route, 7)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert await push_numbers(peer, route, (3, 4)) == [(DUPLICATE, 6), (OK, 7)]


async def as_token(node: Guarded, token: str) -> StreamPeer:
    peer = await node.running.peer()
    await peer.ask((NODE_AUTHENTICATE,), AUTHENTICATE.encode_request(AuthenticateRequest(1, token)))
    return peer


async def test_a_co_writer_cannot_make_the_push_of_another_a_false_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not after restarts, a truncation, and more publisher ids than the stream remembers."""
    monkeypatch.setattr(sequence_machine, "PUBLISHERS_MAX", 20)
    monkeypatch.setattr(publisher_rows, "PUBLISHERS_MAX", 20)
    monkeypatch.setattr(publisher_memory, "NOTED_EVERY", 10)
    tokens = [create_token(token_file(str(tmp_path / "data")), name, int(time.time()))[0] for name in ("good", "bad")]
    rules = [may(WRITES, who=f"token:{name}", name=name) for name in ("good", "bad")]
    for turn in range(3):
        async with guarded(tmp_path, *rules) as node:
            good, bad = [await as_token(node, token) for token in tokens]
            route = await good.create("s")
            number = 2 * turn
            assert (await push_numbers(good, route, (number,)))[0][0] is OK
            # The attack: the next number of the victim, so that its push would be a duplicate.
            refused = await ask(bad, route, RICH_PUSH, RichPush(1, b"evil", None, [], Number(b"p", number + 1)))
            assert refused.status is RichStatus.REFUSED
            if turn == 1:
                await truncate(good, route, 2**40)
            else:
                # An id that the attacker uses first is refused to its victim, which hears of it.
                await push_numbers(bad, route, (turn,), b"later%d" % turn)
            for each in range(30 if turn == 2 else 0):
                await push_numbers(bad, route, (0,), b"flood%d" % each)
            confirm = (await push_numbers(good, route, (number + 1,)))[0]
            assert confirm[0] is OK
    async with guarded(tmp_path, *rules) as node:
        good = await as_token(node, tokens[0])
        route = await good.create("s")
        stored = await ask(good, route, RICH_PUSH, RichPush(1, b"mine", None, [], Number(b"later0", 0)))
        assert stored.status in (RichStatus.OK, RichStatus.REFUSED), "never a false duplicate"
        assert b"evil" not in data_of(await pull(good, route, FromIndex(0)))


async def test_without_rules_ids_belong_to_nobody(tmp_path: Path) -> None:
    """As before: two programs with different tokens share one publisher id, for example after a failover."""
    tokens = [create_token(token_file(str(tmp_path)), name, int(time.time()))[0] for name in ("one", "two")]
    async with served(tmp_path) as running:
        node = Guarded(running, tmp_path)
        one, two = [await as_token(node, token) for token in tokens]
        route = await one.create("s")
        assert await push_numbers(one, route, (0,)) == [(OK, 0)]
        assert await push_numbers(two, route, (0, 1)) == [(DUPLICATE, 0), (OK, 1)]
