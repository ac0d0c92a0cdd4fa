"""Goal: a node calls other nodes in the framing that they speak. Method: a node, and listeners that know one framing.

The legacy listener reads frames as the real services of before June 2024 do: a u16 length, and nothing is sent first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from ockam.actors.address import local, tcp
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from tests.ockam.tcp_server import Server, serve
from tests.support.peer import Peer
from tests.support.served import wait_until


class Caller(Worker):
    """Asks `echo` at a destination, and keeps the answers."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def handle(self, message: Message) -> None:
        self.got.append(message.payload)

    async def ask(self, near: Server, destination: str, payload: bytes) -> None:
        assert near.node.send(Message((tcp(destination), local("echo")), (local("caller"),), payload))
        await wait_until(lambda: payload in self.got)


class OldNode:
    """Echoes the frames of one framing. `openings` has the first bytes of each connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.openings: list[bytes] = []
        self.streams: list[trio.SocketStream] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        self.streams.append(stream)
        try:
            await self._echo(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            await stream.aclose()

    async def _echo(self, stream: trio.SocketStream) -> None:
        peer = Peer(stream, self.wire)
        first = bytes(await stream.receive_some())
        self.openings.append(first[:1])
        if self.wire.hello:
            if not first.startswith(self.wire.hello):
                return
            await stream.send_all(self.wire.hello)
            first = first[1:]
        peer.hello = b""
        data: bytes | None = first
        while data is not None:
            for message in peer.reader.feed(data):
                await stream.send_all(peer.frame(message.return_route, message.payload, (local("echo"),)))
            data = bytes(await stream.receive_some()) or None

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, self.serve, [listener])
            yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
async def test_a_workers_message_reaches_a_node_of_either_framing(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next connection is made at once: the node remembers what the address speaks."""
    monkeypatch.setattr("ockam.transport.calling.AUTO_WAIT_S", 0.2 if wire is LEGACY else 60.0)
    far, caller = OldNode(wire), Caller()
    async with serve() as near, far.listen() as address:
        near.node.register([local("caller")], lambda: caller)
        await caller.ask(near, address, b"first")
        await caller.ask(near, address, b"second")
        assert far.openings == ([b"\x01"] if wire is HEAD else [b"\x01", b"\x00"])
        await far.streams[-1].aclose()
        await wait_until(lambda: not near.transport.statistics().connections)
        monkeypatch.setattr("ockam.transport.calling.AUTO_WAIT_S", 60.0)
        await caller.ask(near, address, b"third")
        assert far.openings[-1] == (b"\x01" if wire is HEAD else b"\x00")
        assert len(far.openings) == (2 if wire is HEAD else 3)
        assert near.node.statistics().dropped == {}


async def test_an_address_that_changes_its_framing_is_found_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A legacy node is replaced by one with the head framing, which ends the connection at the first frame."""
    monkeypatch.setattr("ockam.transport.calling.AUTO_WAIT_S", 0.2)
    far, caller = OldNode(LEGACY), Caller()
    async with serve() as near, far.listen() as address:
        near.node.register([local("caller")], lambda: caller)
        await caller.ask(near, address, b"old")
        far.wire = HEAD
        await far.streams[-1].aclose()
        await wait_until(lambda: not near.transport.statistics().connections)
        monkeypatch.setattr("ockam.transport.calling.AUTO_WAIT_S", 60.0)
        near.node.send(Message((tcp(address), local("echo")), (local("caller"),), b"lost in the change"))
        await wait_until(lambda: len(far.openings) == 3)
