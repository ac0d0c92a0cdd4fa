"""Goal: whoever pushes while a standby is away learns the truth, and the node goes on by itself when it is back.

Method: a whole node on a PostgreSQL server whose commits wait for its only standby, which is killed and started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client import PushNotStored, PushUnknown, connect
from stream_service.appending import APPEND, COPY, AppendedMessage, AppendRequest, CopiedMessage, CopyRequest
from stream_service.extensions import RICH_PULL, FromIndex, RichPull
from tests.stream_storage.postgres.failover import Pair
from tests.support.rich import data_of, info, push, refusal
from tests.support.served import PATIENCE_S, served


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


async def test_pushes_are_unknown_then_not_stored_and_then_go_on(pair: Pair, tmp_path: Path) -> None:
    """Nobody pushes while the standby comes back: the node itself finds out what became of the push in doubt."""
    assert pair.standby is not None
    settings = {"database_wait_s": 0.5, "database_call_s": 0.5, "error_delay_s": 0.05}
    async with served(tmp_path, database=pair.primary.url, **settings) as server, connect(server.address) as client:
        stream, other = await client.create("s"), await client.create("other")
        assert await stream.push(b"stored") == 0
        pair.standby.kill()
        with pytest.raises(PushUnknown, match="waits for a standby"):
            await stream.push(b"doubtful")
        for each in (stream, other):
            with pytest.raises(PushNotStored, match="waits for a standby"):
                await each.push(b"later")
        assert [message.data for message in await stream.pull(0)] == [b"stored"], "reads go on"
        await trio.to_thread.run_sync(pair.standby.start)
        with trio.fail_after(PATIENCE_S):
            while [message.data for message in await stream.pull(0)] != [b"stored", b"doubtful"]:
                await trio.sleep(0.05)
        assert await stream.push(b"after") == 2
        assert await other.push(b"after") == 0
        assert server.statistics().storage.failure is None


async def test_a_push_in_doubt_that_is_not_stored_leaves_no_gap(pair: Pair, tmp_path: Path) -> None:
    """Method: the primary dies while the push waits, and the standby, which never had it, is promoted."""
    assert pair.standby is not None
    settings = {"database_wait_s": 0.5, "database_call_s": 0.5, "error_delay_s": 0.05}
    async with served(tmp_path, database=pair.url, **settings) as server, connect(server.address) as client:
        stream = await client.create("s")
        assert await stream.push(b"stored") == 0
        pair.standby.kill()
        with pytest.raises(PushUnknown, match="waits for a standby"):
            await stream.push(b"doubtful")
        pair.primary.kill()
        await trio.to_thread.run_sync(pair.standby.start)
        await trio.to_thread.run_sync(pair.standby.promote)
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    index = await stream.push(b"after")
                    break
                except PushNotStored:
                    continue
        assert index == 1
        assert [message.data for message in await stream.pull(0)] == [b"stored", b"after"]


async def test_an_idempotent_publisher_stores_each_message_once_through_the_doubt(pair: Pair, tmp_path: Path) -> None:
    """Method: the pushes of the publisher are in doubt, so that it sends them again and again. Another client pushes to
    the stream all the time, so that some appends are submitted at the end as it was before the doubt."""
    assert pair.standby is not None
    # Without work for retention, the pushes are in the first commit that waits.
    settings = {"database_wait_s": 0.5, "database_call_s": 0.5, "error_delay_s": 0.05, "retention_interval_s": 600.0}
    messages = [b"%d" % number for number in range(60)]
    refused = 0

    async def push_others(address: str) -> None:
        nonlocal refused
        async with connect(address) as another:
            others = await another.create("s")
            while True:
                try:
                    await others.push(b"other")
                except (PushNotStored, PushUnknown):
                    refused += 1

    async with served(tmp_path, database=pair.primary.url, **settings) as server, connect(server.address) as client:
        stream = await client.create("s")
        async with stream.publisher(idempotent=True) as publisher, trio.open_nursery() as nursery:
            pushes = [await publisher.push(data) for data in messages[:20]]
            await publisher.flush()
            pair.standby.kill()
            pushes += [await publisher.push(data) for data in messages[20:]]
            with trio.fail_after(PATIENCE_S):
                while not server.statistics().services.pushes_failed:
                    await trio.sleep(0.05)
                nursery.start_soon(push_others, server.address)
                while refused < 2:
                    await trio.sleep(0.05)
            await trio.to_thread.run_sync(pair.standby.start)
            with trio.fail_after(PATIENCE_S):
                await publisher.flush()
            nursery.cancel_scope.cancel()
        found = [message.data for message in await stream.pull(0, limit=100_000)]
        assert [data for data in found if data != b"other"] == messages
        assert [found[push.result()] for push in pushes] == messages


@pytest.mark.parametrize("kind", ["copy", "append"])
async def test_a_copy_or_an_append_in_doubt_is_answered(pair: Pair, tmp_path: Path, kind: str) -> None:
    """A copy in doubt restarts nothing, either: a pull that waits gets its message once that is known to be stored."""
    assert pair.standby is not None
    settings = {"database_wait_s": 0.5, "database_call_s": 0.5, "error_delay_s": 0.05}
    async with served(tmp_path, database=pair.primary.url, **settings) as server:
        peer, waiting = await server.peer(), await server.peer()
        route = await peer.create("s")
        assert (await push(peer, route, b"first")).index == 0
        await waiting.send(route, RICH_PULL.encode_request(RichPull(1, FromIndex(1), 100, 60_000)))
        assert (await info(waiting, route)).next_index == 1, "the pull has come"
        pair.standby.kill()
        if kind == "copy":
            reason = await refusal(peer, route, COPY, CopyRequest(1, 1, [CopiedMessage(1, None, [], b"doubtful")]))
        else:
            appended = AppendRequest(1, 1, None, [AppendedMessage(None, [], b"doubtful")])
            reason = await refusal(peer, route, APPEND, appended)
        assert "waits for a standby" in reason
        await trio.to_thread.run_sync(pair.standby.start)
        if kind == "copy":
            answer = await waiting.receive(PATIENCE_S)
            assert data_of(RICH_PULL.decode_response(answer.payload)) == [b"doubtful"]
            assert server.statistics().node.restarts == 0
