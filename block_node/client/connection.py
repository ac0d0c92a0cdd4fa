"""One connection to a block node, under trio or asyncio (AnyIO): requests with one answer, and conversations.

It ends when the connection does; who tries again, and where, is the business of `publisher` and `subscriber`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.abc

from ockam.address import Address, Route, complete_address, local, split_host_port
from ockam.errors import RemoteProtocolError
from ockam.message import Message
from ockam.protocol import ERROR, Protocol, ProtocolError
from ockam.wire_head import HEAD
from stream_client.core.client_connection import ClientConnection
from stream_client.core.payloads import refusal
from stream_client.errors import ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer
from stream_client.shell.defaults import CONNECT_TIMEOUT_S, READ_BYTES_MAX

Q = TypeVar("Q")
A = TypeVar("A")


class Conversation:
    """Messages to and from one place. Its other end is the service at first, then whoever answers.

    received: what came and was not taken yet, oldest first.
    """

    def __init__(self, connection: BlockConnection, address: Address, route: Route) -> None:
        self._connection = connection
        self._address = address
        self._route = route
        self._arrived = anyio.Event()
        self.received: deque[bytes] = deque()

    async def send(self, payload: bytes) -> None:
        """Returns when it is on its way. Raises ConnectionLost."""
        await self._connection.send(self._route, self._address, payload)

    async def receive(self, timeout_s: float | None = None) -> bytes | None:
        """The next message; None where none came in that time. Raises ConnectionLost, RequestRefused."""
        while not self.received:
            if not await self.wait(timeout_s):
                return None
        return self.take()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Until something has come, or `wake`; False where neither was in that time. Raises ConnectionLost."""
        if not self.received:
            self._connection.check()
            self._arrived = anyio.Event()
            with anyio.move_on_after(timeout_s) as patience:
                await self._arrived.wait()
            if patience.cancelled_caught:
                return False
            if not self.received:
                self._connection.check()
        return True

    def wake(self) -> None:
        """End a `wait`, since there is something else to do."""
        self._arrived.set()

    def take(self) -> bytes | None:
        """What has come by now. Raises RequestRefused."""
        if not self.received:
            return None
        payload = self.received.popleft()
        if ERROR.is_in(payload):
            raise refusal(payload)
        return payload

    def arrived(self, message: Message) -> None:
        self._route = message.return_route
        self.received.append(message.payload)
        self._arrived.set()

    @property
    def node(self) -> str:
        """`host:port` of the node connected to."""
        return self._connection.address

    def close(self) -> None:
        """What still comes is dropped."""
        self._connection.forget(self._address)


class BlockConnection:
    """See the module. via: the hops between the node connected to and the node that has the blocks."""

    def __init__(self, address: str, stream: anyio.abc.SocketStream, via: Route) -> None:
        self.address = address
        self.via = via
        self._stream = stream
        self._link = ClientConnection()
        self._link.connected(HEAD)
        self._sending = anyio.Lock()
        self._conversations: dict[Address, Conversation] = {}
        self._next_address = 0
        self._lost: ConnectionLost | None = None

    def check(self) -> None:
        """Raises ConnectionLost once the connection has ended."""
        if self._lost is not None:
            raise self._lost

    def converse(self, service: str) -> Conversation:
        """A conversation that begins with that service."""
        self._next_address += 1
        address = local(f"b{self._next_address}")
        made = self._conversations[address] = Conversation(self, address, (*self.via, local(service)))
        return made

    def forget(self, address: Address) -> None:
        self._conversations.pop(address, None)

    async def ask(self, service: str, protocol: Protocol[Q, A], request: Q, timeout_s: float) -> A:
        """The one answer to a request. Raises RequestRefused, RequestTimeout, UnexpectedAnswer, ConnectionLost."""
        conversation = self.converse(service)
        try:
            await conversation.send(protocol.encode_request(request))
            payload = await conversation.receive(timeout_s)
        finally:
            conversation.close()
        if payload is None:
            raise RequestTimeout(f"{self.address} has not answered for {timeout_s:g} s")
        try:
            return protocol.decode_response(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error

    async def send(self, route: Route, address: Address, payload: bytes) -> None:
        self.check()
        async with self._sending:
            refused = self._link.put_frame(self._link.header(route, address), payload)
            if refused is not None:
                raise refused
            try:
                await self._stream.send(self._link.data_to_send())
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                self._end()
                raise ConnectionLost(f"the connection to {self.address} ended") from error

    async def run(self) -> None:
        """Read until the connection ends."""
        try:
            while True:
                for message in self._link.messages(await self._stream.receive(READ_BYTES_MAX)):
                    conversation = self._conversations.get(message.onward_route[0])
                    if conversation is not None:
                        conversation.arrived(message)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, RemoteProtocolError):
            self._end()

    def _end(self) -> None:
        self._lost = self._lost or ConnectionLost(f"the connection to {self.address} ended")
        for conversation in self._conversations.values():
            conversation.wake()


@asynccontextmanager
async def open_connection(address: str, via: Route = ()) -> AsyncIterator[BlockConnection]:
    """A connection to the node at `host:port`. Raises NodeUnreachable."""
    host, port = split_host_port(complete_address(address))
    try:
        with anyio.fail_after(CONNECT_TIMEOUT_S):
            stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError) as error:
        reason = str(error) or f"no answer in {CONNECT_TIMEOUT_S:g} s"
        raise NodeUnreachable(f"cannot reach a node at {address}: {reason}") from error
    connection = BlockConnection(address, stream, via)
    failure: BaseException | None = None
    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run)
        try:
            yield connection
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            # Raised behind the task group, so that it leaves the block as it is and not as a group of one.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
