"""A client made of a socket and a wire, so that a test can also send what no client would."""

from __future__ import annotations

import pytest
import trio

from ockam.actors.address import Route, local
from ockam.actors.message import HERE, Message
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire import Wire


class Peer:
    """One connection of such a client."""

    def __init__(self, stream: trio.SocketStream, wire: Wire) -> None:
        self.stream = stream
        self.wire = wire
        self.reader = FrameReader(wire, HERE)
        self.hello = wire.hello
        self.messages: list[Message] = []

    def frame(self, onward_route: Route, payload: bytes, return_route: Route = (local("me"),)) -> bytes:
        _, frame = FrameWriter(self.wire).encode(
            [Message((local("-"), *onward_route), return_route, payload)], lambda error: pytest.fail(str(error))
        )
        return frame

    async def send(self, onward_route: Route, payload: bytes) -> None:
        await self.stream.send_all(self.frame(onward_route, payload))

    async def receive(self, patience_s: float = 60.0) -> Message:
        with trio.fail_after(patience_s):
            while not self.messages:
                data = bytes(await self.stream.receive_some())
                assert data, "the node closed the connection"
                if self.hello:
                    assert data.startswith(self.hello)
                    data, self.hello = data[len(self.hello) :], b""
                self.messages += self.reader.feed(data)
        return self.messages.pop(0)

    async def wait_closed(self) -> None:
        with trio.fail_after(10):
            try:
                while await self.stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                return
