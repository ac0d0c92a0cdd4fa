"""A gRPC server without blocks, on a real socket, for tests: its methods echo, count, and hold their callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from block_node.grpc.http2.connection import (
    CallHandler,
    DoorCounts,
    GrpcCall,
    Route,
    Routes,
    ServerConnection,
    UnaryHandler,
)
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import MessageBudget
from block_node.grpc.http2.socket_bytes import SocketBytes
from ockam.transport.listener import accept_all
from ockam.transport.sockets import socket_name

T = TypeVar("T")
MESSAGE_BYTES_MAX = 128 * 1024 * 1024
PATIENCE_S = 20.0


class EchoHandler(CallHandler):
    """Answers each message with itself, and the end of the half with the end of the call."""

    is_held = False

    def __init__(self, call: GrpcCall) -> None:
        self.call = call
        self.messages: list[bytes] = []
        self.reasons: list[str] = []
        self.rooms = 0

    def may_take(self) -> bool:
        return not self.is_held

    def take(self, message: bytes) -> None:
        self.messages.append(message)
        self.call.send(message)

    def half_closed(self) -> None:
        self.call.finish()

    def room(self) -> None:
        self.rooms += 1

    def ended(self, reason: str) -> None:
        self.reasons.append(reason)


class CountHandler(EchoHandler):
    """Counts messages and answers none, until its peer has ended its half."""

    def take(self, message: bytes) -> None:
        self.messages.append(message)

    def half_closed(self) -> None:
        self.call.send(b"%d" % len(self.messages))
        self.call.finish()


class HeldHandler(CountHandler):
    """Takes messages only while the test lets it."""

    is_held = True

    def let(self) -> None:
        self.is_held = False
        self.call.resume()


class SourceHandler(EchoHandler):
    """Sends as many messages of a size as its first message says (count:size), as room comes."""

    left = size_bytes = 0

    def take(self, message: bytes) -> None:
        self.left, self.size_bytes = map(int, message.split(b":"))
        self.room()

    def half_closed(self) -> None:
        pass

    def room(self) -> None:
        self.rooms += 1
        while self.left:
            self.left -= 1
            if not self.call.send(bytes(self.size_bytes)) and self.left:
                return
        self.call.finish()


class Door:
    """The server. handlers: those of all calls, in order. connections: all that were open."""

    def __init__(self, limits: Http2Limits, prefers: tuple[str, ...]) -> None:
        self.limits = limits
        self.prefers = prefers
        self.port = 0
        self.budget = MessageBudget(limits.unfinished_bytes_max)
        self.counts = DoorCounts()
        self.handlers: list[EchoHandler] = []
        self.connections: list[ServerConnection] = []
        self.routes: Routes = {
            b"/test.Test/echo": self._route(EchoHandler),
            b"/test.Test/count": self._route(CountHandler),
            b"/test.Test/hold": self._route(HeldHandler),
            b"/test.Test/source": self._route(SourceHandler),
            b"/test.Test/small": Route(self._unary, 64 * 1024),
            b"/test.Test/fail": Route(self._fail, 64 * 1024),
        }

    def _route(self, kind: Callable[[GrpcCall], EchoHandler]) -> Route:
        def opened(call: GrpcCall) -> CallHandler:
            self.handlers.append(kind(call))
            return self.handlers[-1]

        return Route(opened, MESSAGE_BYTES_MAX)

    def _unary(self, call: GrpcCall) -> CallHandler:
        return UnaryHandler(call, lambda message: message)

    def _fail(self, call: GrpcCall) -> CallHandler:
        def answer(message: bytes) -> bytes:
            raise ZeroDivisionError("a mistake")

        return UnaryHandler(call, answer)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def last(self, kind: type[T]) -> T:
        found = self.handlers[-1]
        assert isinstance(found, kind)
        return found


@asynccontextmanager
async def opened_door(limits: Http2Limits | None = None, prefers: tuple[str, ...] = ()) -> AsyncIterator[Door]:
    """A door that serves inside. At its end every connection must have ended in order."""
    door = Door(limits or Http2Limits(), prefers)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    door.port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:

        def accept(stream: trio.SocketStream) -> None:
            address = socket_name(stream.socket.getpeername())
            connection = ServerConnection(
                SocketBytes(stream), door.routes, door.limits, door.budget, door.counts, address=address,
                prefers=door.prefers,
            )  # fmt: skip
            door.connections.append(connection)
            nursery.start_soon(connection.run)

        nursery.start_soon(partial(accept_all, listener, accept, lambda: None))
        with trio.fail_after(PATIENCE_S):
            yield door
        for connection in door.connections:
            connection._machine.check()
        nursery.cancel_scope.cancel()
    assert door.budget.held_bytes == 0
    for connection in door.connections:
        assert not connection._machine.calls
        assert not connection._served


async def wait_until(is_true: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not is_true():
            await trio.sleep(0.002)
