"""The client for async programs, under trio or asyncio (AnyIO): a shell of sockets and waiting around `core`.

async with connect("127.0.0.1:4000") as client:
    stream = await client.create("orders")
    index = await stream.push(b"hello")
    for message in await stream.pull(0, 10):
        print(message.index, message.data)
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import anyio
import anyio.abc
import msgspec

from ockam.address import Route, split_host_port
from ockam.era import HEAD_SILENCE_S
from ockam.errors import RemoteProtocolError
from ockam.wire import Wire
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY
from stream_service.client.core import Call, ClientCore, Port, Push, Waiting, pulled
from stream_service.client.errors import ClientError, NodeUnreachable, RequestTimeout
from stream_service.names import partition_of
from stream_service.protocol import StreamMessage

Framing: TypeAlias = Literal["head", "legacy", "auto"]

READ_BYTES_MAX = 256 * 1024
UNSENT_BYTES_MAX = 64 * 1024
"""A publisher that has encoded this much lets the sending task have its turn."""
WINDOW = 1_000
"""How many pushes may wait for their confirm, unless the caller says otherwise."""
ANSWER_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 5.0
CHECK_INTERVAL_S = 2.0
"""What is unanswered for one to two of these is asked again; answers come within milliseconds, or after a failed disk
within the node's `error_delay_s`."""


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """How a lost connection is made again: delays in seconds, doubling from first to most, each times 0.5 to 1."""

    delay_s: float = 0.05
    delay_s_max: float = 5.0


@asynccontextmanager
async def connect(
    address: str = "127.0.0.1:4000",
    *,
    via: Route = (),
    framing: Framing = "head",
    reconnect: Reconnect | None = Reconnect(),  # noqa: B008  (frozen, no state)
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
) -> AsyncIterator[StreamClient]:
    """A client of the node at `host:port`, or of the node behind it that the route `via` leads to.

    Raises NodeUnreachable where the first connection fails; later ones are made again by `reconnect`, and what was not
    answered is sent again: a push whose confirm was lost can then be stored twice. With reconnect None, a lost
    connection fails everything that waits with ConnectionLost. Leaving the block normally sends what is still to be sent.
    """
    client = StreamClient(address, ClientCore(via=via), framing, reconnect, answer_timeout_s)
    stream, wire = await client.dial()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.keep_connected, stream, wire)
        if reconnect is not None:
            tasks.start_soon(client.keep_checking)
        try:
            yield client
            await client.wait_sent()
        finally:
            client.core.close()
            tasks.cancel_scope.cancel()


class StreamClient:
    """One node's streams. Made by `connect`; its methods may be used from many tasks at once."""

    def __init__(
        self,
        address: str,
        core: ClientCore,
        framing: Framing,
        reconnect: Reconnect | None,
        answer_timeout_s: float,
    ) -> None:
        self.address = address
        self.core = core
        self._framing = framing
        self._reconnect = reconnect
        self._answer_timeout_s = answer_timeout_s
        self._wake_sender = anyio.Event()
        self._all_sent = anyio.Event()
        self.reconnects = 0
        core.on_outgoing = self._outgoing

    async def create(self, name: str | None = None) -> Stream:
        """The stream of that name, made if it does not exist; without a name the node makes one up."""
        return (await self._create(name, 1))[0]

    async def create_partitioned(self, name: str | None, partitions: int) -> PartitionedStream:
        """The first `partitions` partitions of a stream, those missing made."""
        return PartitionedStream(await self._create(name, partitions))

    async def request(self, service: str, payload: bytes) -> bytes:
        """Ask a service of the node; its one answer. Raises RequestRefused, RequestTimeout."""
        return (await self.wait(self.core.call(self.core.route_to(service), payload))).answers[0]

    def tell(self, service: str, payload: bytes) -> None:
        """Send a service something that it does not answer; lost when the connection is."""
        self.core.tell(service, payload)

    async def wait_sent(self) -> None:
        """Wait until what has no answer (a saved index) has left too, for SEND_TIMEOUT_S at most."""
        with anyio.move_on_after(SEND_TIMEOUT_S):
            await self._all_sent.wait()

    async def wait(self, call: Call) -> Call:
        """The call, answered. Raises its error, or RequestTimeout."""
        with anyio.move_on_after(self._answer_timeout_s):
            await wait_done(call)
        self.core.forget(call)
        if not call.done:
            raise RequestTimeout(f"{self.address} has not answered in {self._answer_timeout_s:g} s")
        if call.error is not None:
            raise call.error
        return call

    async def dial(self) -> tuple[anyio.abc.SocketStream, Wire]:
        """A new connection and the framing spoken on it. Raises NodeUnreachable."""
        host, port = split_host_port(self.address)
        try:
            stream = await anyio.connect_tcp(host, port)
        except OSError as error:
            raise NodeUnreachable(f"cannot reach a node at {self.address}: {error}") from error
        if self._framing == "auto":
            with anyio.move_on_after(HEAD_SILENCE_S + 0.1):
                await anyio.wait_readable(stream.extra(anyio.abc.SocketAttribute.raw_socket))
                return stream, HEAD
            return stream, LEGACY
        return stream, HEAD if self._framing == "head" else LEGACY

    async def keep_connected(self, stream: anyio.abc.SocketStream, wire: Wire) -> None:
        """Serve connection after connection until cancelled (`connect` runs this)."""
        while True:
            await self._serve(stream, wire)
            self.core.disconnected(for_good=self._reconnect is None)
            if self._reconnect is None:
                return
            stream, wire = await self._dial_again(self._reconnect)
            self.reconnects += 1

    async def keep_checking(self) -> None:
        """Ask again for what is not answered, until cancelled (`connect` runs this)."""
        while True:
            await anyio.sleep(CHECK_INTERVAL_S)
            self.core.check_progress()

    async def _dial_again(self, reconnect: Reconnect) -> tuple[anyio.abc.SocketStream, Wire]:
        delay_s = reconnect.delay_s
        while True:
            await anyio.sleep(delay_s * random.uniform(0.5, 1.0))
            try:
                return await self.dial()
            except NodeUnreachable:
                delay_s = min(2 * delay_s, reconnect.delay_s_max)

    async def _serve(self, stream: anyio.abc.SocketStream, wire: Wire) -> None:
        self.core.connected(wire)
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(self._send, stream, tasks.cancel_scope)
            await self._receive(stream, wire)
            tasks.cancel_scope.cancel()

    async def _receive(self, stream: anyio.abc.SocketStream, wire: Wire) -> None:
        hello = wire.hello
        try:
            while True:
                data = await stream.receive(READ_BYTES_MAX)
                if hello:
                    if not data.startswith(hello):
                        return
                    data, hello = data[len(hello) :], b""
                self.core.receive_data(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, RemoteProtocolError):
            return

    async def _send(self, stream: anyio.abc.SocketStream, scope: anyio.CancelScope) -> None:
        while True:
            data = self.core.data_to_send()
            if not data:
                self._all_sent.set()
                self._wake_sender = anyio.Event()
                await self._wake_sender.wait()
                continue
            try:
                await stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                scope.cancel()
                return

    def _outgoing(self) -> None:
        if self._all_sent.is_set():
            self._all_sent = anyio.Event()
        self._wake_sender.set()

    async def _create(self, name: str | None, partitions: int) -> list[Stream]:
        created = await self.wait(self.core.create(name, partitions))
        return [Stream(self, port) for port in self.core.ports(created)]


class Stream:
    """One partition of one stream."""

    def __init__(self, client: StreamClient, port: Port) -> None:
        self._client = client
        self._port = port

    @property
    def name(self) -> str:
        return self._port.name

    @property
    def partition(self) -> int:
        return self._port.partition

    @property
    def unconfirmed(self) -> int:
        """How many pushes have been sent, or wait to be sent, without a confirm."""
        return len(self._port.pushes)

    async def push(self, data: bytes) -> int:
        """Store one message; its index, once it is on disk. Raises PushFailed and other ClientErrors."""
        push = self._client.core.push(self._port, data)
        await wait_done(push)
        return stored_index(push)

    async def pull(self, index: int = 0, limit: int = 1_000) -> Sequence[StreamMessage]:
        """Up to `limit` messages from `index` on (0: from the earliest stored); empty where there are none yet."""
        core = self._client.core
        return pulled(await self._client.wait(core.pull(self._port, index, limit)))

    @asynccontextmanager
    async def publisher(self, window: int = WINDOW) -> AsyncIterator[Publisher]:
        """Push without waiting for each confirm; all are confirmed when the block ends without an exception."""
        publisher = Publisher(self._client.core, self._port, window)
        yield publisher
        await publisher.flush()


class Publisher:
    """Pushes in a row, with at most `window` of them unconfirmed."""

    def __init__(self, core: ClientCore, port: Port, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window of {window}; at least 1 push must be allowed on its way")
        self._core = core
        self._port = port
        self._window = window

    async def push(self, data: bytes) -> Push:
        """Send one message, waiting first while the window is full; the result has its `index` once it is `done`."""
        pushes = self._port.pushes
        if len(pushes) >= self._window:
            await self._wait_until(lambda: len(pushes) < self._window)
        elif self._core.outgoing_bytes > UNSENT_BYTES_MAX:
            await anyio.lowlevel.checkpoint()
        return self._core.push(self._port, data)

    async def push_many(self, messages: Iterable[bytes]) -> list[int]:
        """Store messages in order; their indexes. Raises the first failure after all have been answered."""
        pushes = [await self.push(data) for data in messages]
        await self.flush()
        return [stored_index(push) for push in pushes]

    async def flush(self) -> None:
        """Wait until everything sent has been answered, one way or the other."""
        pushes = self._port.pushes
        await self._wait_until(lambda: not pushes)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            room = anyio.Event()
            self._port.on_room.append(room.set)
            await room.wait()


class PartitionedStream:
    """Some or all partitions of one stream."""

    def __init__(self, partitions: Sequence[Stream]) -> None:
        self.partitions = tuple(partitions)

    @property
    def name(self) -> str:
        return self.partitions[0].name

    def partition_for(self, key: bytes) -> Stream:
        """The partition that messages with this key go to (`stream_service.names.partition_of`)."""
        return self.partitions[partition_of(key, len(self.partitions))]

    async def push(self, key: bytes, data: bytes) -> int:
        """Store a message in its key's partition; its index there."""
        return await self.partition_for(key).push(data)


async def wait_done(waiting: Waiting) -> None:
    if not waiting.done:
        done = anyio.Event()
        waiting.on_done = done.set
        await done.wait()


def stored_index(push: Push) -> int:
    """Where a push was stored. Raises its error."""
    if push.error is not None:
        raise push.error
    return push.index


__all__ = ["ClientError", "PartitionedStream", "Publisher", "Reconnect", "Stream", "StreamClient", "connect"]
