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
from tests.storage.postgres.failover import Pair
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
