"""Goal: a connection that has ended leaves nothing in memory, however it ended. Method: a real node; peers that send a
large valid frame and then end in each way; the objects that Python still has are counted, not what the node says.
"""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import pytest
import trio
import trio.testing

from ockam.actors.address import local, tcp
from ockam.actors.message import Message
from ockam.transport.connection import Connection
from ockam.transport.frames import FrameWriter
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import serve
from tests.support.served import served, wait_until

CONNECTIONS = 10
FRAME = FrameWriter(HEAD).encode([Message((local("x"), local("nowhere")), (local("me"),), bytes(1 << 20))], print)[1]
ENDS = {
    "bad_frame": FRAME + struct.pack(">I", 5) + b"\xff" * 5,
    "oversized": FRAME + b"\xff" * 8,
    "torn": FRAME + FRAME[: 1 << 19],
    "clean": FRAME,
}


def alive_connections() -> list[Connection]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Connection)]


@pytest.mark.parametrize("end", ENDS)
async def test_an_ended_connection_leaves_nothing(tmp_path: Path, end: str) -> None:
    async with served(tmp_path) as running:
        host, port = running.address.rsplit(":", 1)
        # Earlier tests of this process may have left some, for example in the traceback of an error they wanted.
        earlier = alive_connections()

        async def come_and_go() -> None:
            stream = await trio.open_tcp_stream(host, int(port))
            async with stream:
                await stream.send_all(HEAD.hello + ENDS[end])
                if end in ("torn", "clean"):
                    await stream.send_eof()
                try:
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass

        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS):
                nursery.start_soon(come_and_go)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not [each for each in alive_connections() if each not in earlier]


async def test_an_ended_connection_that_the_node_has_made_leaves_nothing() -> None:
    """Claim: also a call to a node that is gone is forgotten. Method: the far node answers once, and ends."""
    earlier = alive_connections()
    async with serve() as near:
        async with serve() as far:
            near.node.send(Message((tcp(far.address), local("echo")), (local("nobody"),), b"x"))
            await wait_until(lambda: near.node.statistics().dropped)
        await wait_until(lambda: not near.transport.statistics().connections)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not [each for each in alive_connections() if each not in earlier]
