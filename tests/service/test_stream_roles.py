"""Goal: `node/stream_role/1`, `node/stream_append/1` and `node/stream_mirror/1` do what docs/wire.md says.

Method: single requests to a real server, raw answers; what a mirror would get is compared with what a pull gets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.actors.address import Route
from stream_service.appending import (
    APPEND,
    COPY,
    AppendedMessage,
    AppendRequest,
    AppendResponse,
    AppendStatus,
    CopiedMessage,
    CopyRequest,
)
from stream_service.extensions import (
    DELETE,
    RETENTION,
    TRUNCATE,
    BeforeIndex,
    DeleteRequest,
    FromIndex,
    Header,
    Retention,
    RetentionRequest,
    RichStatus,
    TruncateRequest,
    decode_extras,
)
from stream_service.mirroring import (
    MIRROR,
    ROLE,
    BeMirror,
    BePrimary,
    MirrorAnswer,
    MirrorPull,
    MirrorStatus,
    Role,
    RoleRequest,
    RoleResponse,
    decode_mirror_page,
)
from stream_service.protocol import PUSH, PushRequest, Status
from tests.support.rich import ask, data_of, pull, push, refusal
from tests.support.served import served
from tests.support.stream_peer import StreamPeer, stream_peer

NOWHERE = BeMirror("127.0.0.1:9", "there")
"""A source that nobody serves: the stream is a mirror that gets nothing."""


async def role(
    peer: StreamPeer, route: Route, change: BeMirror | BePrimary | None, force: bool = False
) -> RoleResponse:
    return await ask(peer, route, ROLE, RoleRequest(5, change, force))


async def mirrored(peer: StreamPeer, route: Route, start: int, entry_id: int = 0, wait_ms: int = 0) -> MirrorAnswer:
    request = MirrorPull(3, start, 1 << 20, wait_ms, entry_id)
    return decode_mirror_page((await peer.ask(route, MIRROR.encode_request(request))).payload)


def appended(*data: bytes) -> list[AppendedMessage]:
    return [AppendedMessage(b"k" + each, [Header("h", each)], each) for each in data]


async def test_a_page_for_a_mirror_has_what_a_pull_has_and_the_sequence_numbers(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        for number in range(5):
            headers = [Header("n", b"%d" % number)] if number % 2 else []
            sequence = (b"me", number // 2) if not number % 2 else None
            await push(peer, route, b"%d" % number, key=b"k" if number else None, headers=headers, sequence=sequence)
        await peer.push(route, b"plain")
        found = await mirrored(peer, route, 0)
        messages = (await pull(peer, route, FromIndex(0))).messages
        assert (found.status, found.role, found.first_index, found.next_index, found.start) == (0, 0, 0, 6, 0)
        extras = [decode_extras(record[4]) for record in found.records]
        assert [(each.index, each.data, each.time_us, each.key, each.headers) for each in messages] == [
            (*record[:4], extra.headers) for record, extra in zip(found.records, extras, strict=True)
        ]
        numbers = [None if each.sequence is None else each.sequence.sequence for each in extras]
        assert numbers == [0, None, 1, None, 2, None]
        (entry,) = found.history
        assert (await mirrored(peer, route, 4, entry.entry_id)).records == found.records[4:]
        assert (await mirrored(peer, route, 6, entry.entry_id)).records == []


async def test_a_mirror_that_waits_is_answered_by_a_push(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer, stream_peer(node.address) as other:
        route = await peer.create("s")
        await peer.send(route, MIRROR.encode_request(MirrorPull(3, 0, 1 << 20, 5_000, 0)))
        await other.push(await other.create("s"), b"new")
        found = decode_mirror_page((await peer.receive()).payload)
        assert [record[1] for record in found.records] == [b"new"]


async def test_a_history_is_kept_and_tells_who_has_parted(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await peer.push(route, b"a")
        (first,) = (await mirrored(peer, route, 0)).history
        assert (await role(peer, route, NOWHERE)).role is Role.MIRROR
        answer = await role(peer, route, BePrimary(False), force=True)
        assert (answer.role, answer.source, answer.next_index) == (Role.PRIMARY, "", 1)
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await peer.push(route, b"b")
        found = await mirrored(peer, route, 0)
        assert [entry.first_index for entry in found.history] == [0, 1]
        assert found.history[0] == first
        assert found.history[1].entry_id == answer.entry_id
        assert (await mirrored(peer, route, 1, first.entry_id)).status is MirrorStatus.OK
        parted = await mirrored(peer, route, 2, first.entry_id)
        assert (parted.status, parted.records, parted.history) == (MirrorStatus.PARTED, [], found.history)
        assert (await mirrored(peer, route, 2, answer.entry_id)).status is MirrorStatus.OK
        assert (await mirrored(peer, route, 3, answer.entry_id)).status is MirrorStatus.PARTED
        assert (await mirrored(peer, route, 0, 77)).status is MirrorStatus.PARTED


async def test_a_mirror_refuses_every_change_and_says_who_its_source_is(tmp_path: Path) -> None:
    async with served(tmp_path, error_delay_s=0.0) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await peer.push(route, b"before")
        made = await role(peer, route, NOWHERE)
        assert (made.role, made.source, made.stream_name, made.next_index) == (Role.MIRROR, "127.0.0.1:9", "there", 1)
        assert (await peer.push(route, b"plain")).status is Status.ERROR
        assert (await push(peer, route, b"rich", sequence=(b"me", 1))).status is RichStatus.ERROR
        source = "'s' is a mirror of 'there' at 127.0.0.1:9"
        copy = CopyRequest(1, 1, [CopiedMessage(1, None, [], b"")])
        assert source in await refusal(peer, route, COPY, copy)
        assert source in await refusal(peer, route, TRUNCATE, TruncateRequest(1, BeforeIndex(1)))
        assert source in await refusal(peer, route, DELETE, DeleteRequest(1))
        assert source in await refusal(peer, route, RETENTION, RetentionRequest(1, Retention(1)))
        refused_before = node.statistics().services.refused
        refused = await ask(peer, route, APPEND, AppendRequest(1, 1, None, appended(b"x")))
        assert (refused.status, refused.next_index) == (AppendStatus.REFUSED, 1)
        assert node.statistics().services.refused == refused_before + 1
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"before"]
        assert (await mirrored(peer, route, 0)).is_mirror
        assert await role(peer, route, None) == made
    async with served(tmp_path, error_delay_s=0.0) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert (await peer.push(route, b"plain")).status is Status.ERROR, "a restart changes nothing"
        await role(peer, route, BePrimary(False), force=True)
        assert (await peer.push(route, b"after")).index == 1


async def test_a_push_that_was_stored_before_is_known_after_a_promotion(tmp_path: Path) -> None:
    async with served(tmp_path, error_delay_s=0.0) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        for number in range(3):
            assert (await push(peer, route, b"%d" % number, sequence=(b"me", number))).status is RichStatus.OK
        await role(peer, route, NOWHERE)
        assert (await push(peer, route, b"3", sequence=(b"me", 3))).status is RichStatus.ERROR
        await role(peer, route, BePrimary(False), force=True)
        again = await push(peer, route, b"2", sequence=(b"me", 2))
        assert (again.status, again.index) == (RichStatus.DUPLICATE, 2)
        assert (await push(peer, route, b"3", sequence=(b"me", 3))).index == 3


@pytest.mark.parametrize(
    ("change", "force", "says"),
    [
        (BeMirror("nowhere", "there"), False, "HOST:PORT"),
        (BeMirror("x" * 300 + ":1", "there"), False, "HOST:PORT"),
        (BeMirror("host:1", ""), False, "not empty"),
        (BePrimary(False), False, "use force"),
    ],
)
async def test_a_role_that_cannot_be_is_refused(
    tmp_path: Path, change: BeMirror | BePrimary, force: bool, says: str
) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        await role(peer, route, NOWHERE)
        assert says in await refusal(peer, route, ROLE, RoleRequest(1, change, force))


async def test_pushes_before_a_change_of_the_role_are_confirmed_and_those_after_are_not(tmp_path: Path) -> None:
    """What the answer tells as the end is exactly the number of confirmed pushes."""
    async with served(tmp_path, error_delay_s=0.0) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        frames = [peer.frame(route, PUSH.encode_request(PushRequest(number, b"x"))) for number in range(100)]
        frames.insert(60, peer.frame(route, ROLE.encode_request(RoleRequest(5, NOWHERE, False))))
        await peer.stream.send_all(b"".join(frames))
        confirmed, end = 0, None
        for _ in frames:
            payload = (await peer.receive()).payload
            if ROLE.is_in(payload):
                end = ROLE.decode_response(payload).next_index
            else:
                confirmed += PUSH.decode_response(payload).status is Status.OK
        assert confirmed == end == 60


async def test_an_append_is_stored_where_it_is_expected_or_not_at_all(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        made = await ask(peer, route, APPEND, AppendRequest(1, 0, None, appended(b"a", b"b")))
        entry_id = made.entry_id
        assert made == AppendResponse(1, AppendStatus.OK, 2, entry_id)
        for expected in (0, 1, 3):
            refused = await ask(peer, route, APPEND, AppendRequest(2, expected, entry_id, appended(b"x")))
            assert refused == AppendResponse(2, AppendStatus.CONFLICT, 2, entry_id)
        fenced = await ask(peer, route, APPEND, AppendRequest(3, 2, entry_id ^ 1, appended(b"x")))
        assert fenced == AppendResponse(3, AppendStatus.FENCED, 2, entry_id)
        assert (await ask(peer, route, APPEND, AppendRequest(4, 2, entry_id, appended(b"c")))).next_index == 3
        await peer.push(route, b"d")
        found = (await pull(peer, route, FromIndex(0))).messages
        assert [(each.key, each.headers, each.data) for each in found[:3]] == [
            (b"k" + each, [Header("h", each)], each) for each in (b"a", b"b", b"c")
        ]
        assert [each.index for each in found] == [0, 1, 2, 3]
        assert [each.time_us for each in found] == sorted(each.time_us for each in found)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "without messages"),
        ([AppendedMessage(b"k" * 5_000, [], b"")], "a key of 5000 bytes"),
        ([AppendedMessage(None, [Header("n", b"v" * 20_000)], b"")], "headers of 20001 bytes"),
    ],
)
async def test_an_append_that_cannot_be_stored_is_refused(
    tmp_path: Path, messages: list[AppendedMessage], says: str
) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        assert says in await refusal(peer, route, APPEND, AppendRequest(1, 0, None, messages))


async def test_of_several_programs_one_append_at_an_index_is_stored(tmp_path: Path) -> None:
    async with served(tmp_path) as node, stream_peer(node.address) as peer:
        route = await peer.create("s")
        requests = [AppendRequest(number, 0, None, appended(b"%d" % number)) for number in range(50)]
        await peer.stream.send_all(b"".join(peer.frame(route, APPEND.encode_request(each)) for each in requests))
        answers = [APPEND.decode_response((await peer.receive()).payload) for _ in requests]
        stored = [each.request_id for each in answers if each.status is AppendStatus.OK]
        assert stored == [0]
        assert data_of(await pull(peer, route, FromIndex(0))) == [b"0"]
