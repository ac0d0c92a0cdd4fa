"""Goal: a silent connection does not hold the bytes that passed through it last, however many they were.

Method: some connections get large answers that the socket does not take at once, and stay; what is still allocated in
`ockam` is counted.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import trio
import trio.testing

from ockam.actors.address import local
from ockam.transport import connection
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import serve

CONNECTIONS, ANSWER_BYTES = 4, 8 * 1024 * 1024


async def test_a_silent_connection_does_not_hold_the_bytes_that_were_sent_last() -> None:
    async with serve() as server:
        peers = [await server.peer(HEAD) for _ in range(CONNECTIONS)]
        tracemalloc.start()
        try:
            for peer in peers:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(peer.send, (local("echo"),), bytes(ANSWER_BYTES))
                    assert len((await peer.receive()).payload) == ANSWER_BYTES
                # A few bytes more, so that what came last is small as well.
                await peer.send((local("echo"),), b"")
                await peer.receive()
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            ours = tracemalloc.Filter(True, str(Path(connection.__file__).parents[1] / "*"))
            kept = tracemalloc.take_snapshot().filter_traces([ours]).statistics("filename")
        finally:
            tracemalloc.stop()
    assert sum(each.size for each in kept) < ANSWER_BYTES // 16
