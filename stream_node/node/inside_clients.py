"""InsideClients: the clients inside the node by which HTTP requests and the operator's workers use streams.

There is one for each identity and host. It is an ordinary `stream_client.StreamClient` over a pair of connected
sockets. The node serves the other end like any other connection, with the identity of whoever causes the requests. So
every right and limit is checked, and every promise kept, in the same place as for all other connections."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio.abc
import trio

from ockam.actors.message import Message
from ockam.errors import AskRefused, AskTimedOut
from ockam.identity.identity import Identity
from ockam.protocol import ERROR, ProtocolError, error_payload
from ockam.quotas.usage import is_limited
from ockam.transport.connection import Connection
from ockam.transport.tcp import TcpTransport
from ockam.transport.wire_head import HEAD
from stream_client import (
    ClientError,
    Page,
    PushUnknown,
    Stream,
    StreamClient,
    StreamInfo,
    StreamNotFound,
    UnexpectedAnswer,
)
from stream_client.arguments import StartLike, encoded, start_of
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.sequence_machine import not_saved
from stream_client.session import ClientSession
from stream_client.shell.async_shell import AsyncShell, background_tasks
from stream_client.shell.base_shell import ANSWER_TIMEOUT_S, ShellSettings
from stream_client.shell.dial import Dialled
from stream_node.node.config import Config
from stream_service.extensions import BATCH_MESSAGES_MAX, BATCHED, PACKED_PULL, PackedPull, PushFailure
from stream_service.names import stream_address
from stream_service.page_codec import decode_packed_page
from stream_service.push_codec import decode_batch_answer, encode_batch

BATCH_BYTES_MAX = 1024 * 1024
"""A batch of this size takes no further message, so that its encoded copies stay small."""
STREAMS_MAX = 1_000
"""The partitions of at most this many streams are remembered."""
IDLE_S = 60.0
CHECK_INTERVAL_S = 5.0
IN_ERRORS = "this node"
"""The name of the node in the errors of these clients."""


class NoInsideClient(Exception):
    """Error: the node has no room for one more client inside it, or ends.
    is_closing: whether the node has just ended the client; the next attempt opens a new one."""

    def __init__(self, text: str, *, is_closing: bool = False) -> None:
        super().__init__(text)
        self.is_closing = is_closing


class _Held:
    """One client and the requests that use it. client: None while it opens. connection: the node's end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.client: StreamClient | None = None
        self.opened = trio.Event()
        self.users = 0
        self.unused_s = -math.inf
        self.scope = trio.CancelScope()


class InsideClients:
    """All clients inside one node.
    Invariant: at most `clients_max` clients are open; a client that a request uses is never closed for another one."""

    def __init__(
        self,
        tcp: TcpTransport,
        nursery: trio.Nursery,
        config: Config,
        *,
        clients_max: int,
        too_many: str = "too many clients inside the node; try again later",  # the error if all are used
    ) -> None:
        self._tcp = tcp
        self._nursery = nursery
        self._service, self._index_service = config.service_addresses[0], config.index_addresses[0]
        self._clients_max = clients_max
        self._too_many = too_many
        self._held: dict[tuple[Identity, str], _Held] = {}
        self._partitions: dict[str, list[StreamInfo]] = {}
        self._changes = 0
        nursery.start_soon(self._close_unused)

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def client(self, identity: Identity, peer: str) -> AsyncIterator[StreamClient]:
        """Opens or shares a client with this identity, while the block runs. Raises NoInsideClient.
        peer: the `host:port` of whoever causes the requests; anonymous peers of one host share a client."""
        held = self._find(identity, peer)
        held.users += 1
        try:
            await held.opened.wait()
            if held.client is None:
                raise NoInsideClient("the node closes; send the request again", is_closing=True)
            yield held.client
        finally:
            held.users -= 1
            held.unused_s = trio.current_time()

    def known_partitions(self, changes: int) -> dict[str, list[StreamInfo]]:
        """Returns the partitions of streams by name, as the node has listed them. The caller adds to them.
        changes: how often a partition was added or removed. Each change begins a new dictionary, so that a list from
        before the change is not found after the change."""
        if changes != self._changes or len(self._partitions) >= STREAMS_MAX:
            self._partitions, self._changes = {}, changes
        return self._partitions

    def connection_of(self, identity: Identity, peer: str) -> Connection:
        """Returns the node's end of the client that a request uses now, see `client`."""
        return self._held[identity, _host_of(peer)].connection

    def close_identities(self, is_meant: Callable[[Identity], bool]) -> None:
        """Forgets the clients of all identities that the function chooses; their requests fail.
        `TcpTransport.close_identities` ends and counts the connections at the other ends."""
        for key in [key for key in self._held if is_meant(key[0])]:
            self._held.pop(key).scope.cancel()

    def _find(self, identity: Identity, peer: str) -> _Held:
        key = (identity, _host_of(peer))
        held = self._held.get(key)
        if held is not None and held.client is not None and held.client.session.core.connection.closed:
            # The node has ended its connection, for example because the rules have changed.
            self._held.pop(key).scope.cancel()
            held = None
        if held is None:
            self._make_room()
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                raise NoInsideClient(f"no room for a client: {error.strerror}") from error
            ours.setblocking(False)
            connection = self._tcp.attach(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)), peer, identity)
            held = self._held[key] = _Held(connection)
            self._nursery.start_soon(self._run, key, held, ours)
        return held

    def _make_room(self) -> None:
        """Closes the longest unused client if `clients_max` are open. Raises NoInsideClient if all are used."""
        if len(self._held) < self._clients_max:
            return
        unused = [key for key, held in self._held.items() if not held.users]
        if not unused:
            raise NoInsideClient(self._too_many)
        self._held.pop(min(unused, key=lambda key: self._held[key].unused_s)).scope.cancel()

    async def _run(self, key: tuple[Identity, str], held: _Held, ours: socket.socket) -> None:
        try:
            with held.scope:
                stream = await anyio.abc.UNIXSocketStream.from_socket(ours)
                core = ClientCore(service=self._service, index_service=self._index_service)
                shell = AsyncShell(core, ShellSettings(IN_ERRORS))
                async with background_tasks() as tasks:
                    # The stream is connected already, and the client does not connect again.
                    shell.start(tasks, Dialled(stream, HEAD))
                    try:
                        held.client = StreamClient(ClientSession(IN_ERRORS, core, shell, ANSWER_TIMEOUT_S))
                        held.opened.set()
                        await trio.sleep_forever()
                    finally:
                        await shell.close()
        finally:
            if self._held.get(key) is held:
                del self._held[key]
            held.opened.set()

    async def _close_unused(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            now_s = trio.current_time()
            for key, held in list(self._held.items()):
                is_closed = held.client is not None and held.client.session.core.connection.closed
                if not held.users and held.opened.is_set() and (is_closed or now_s >= held.unused_s + IDLE_S):
                    self._held.pop(key).scope.cancel()


def _host_of(peer: str) -> str:
    return peer.rpartition(":")[0]


class Stored(NamedTuple):
    """The result of pushes that follow each other."""

    messages: int
    first_index: int  # negative if it was forgotten, long after the push; without meaning after an error
    error: ClientError | None = None  # why the messages are not stored


class InsideStream(Stream):
    """A partition whose worker runs in this process. Plain pushes and pages go to the worker without frames, as
    requests of the client's connection, with the same checks, limits and answers. Other requests go in frames."""

    def __init__(self, session: ClientSession, handle: PartitionHandle, connection: Connection) -> None:
        """connection: the node's end of the client."""
        super().__init__(session, handle)
        self._connection = connection
        self._route = (stream_address(handle.name, handle.partition),)

    async def push_plain(self, messages: list[bytes]) -> list[Stored]:
        """Stores messages without key and headers, in order. Returns the result of each batch, with its error."""
        batches = list(_batches(messages))
        payloads = [encode_batch(0, batch) for batch in batches]
        # With the prefix BATCHED, answers say why a push failed, and whether it is unknown what is stored.
        answers = await self._connection.ask(self._route, payloads, ANSWER_TIMEOUT_S, BATCHED)
        return [self._stored(answer, len(batch)) for answer, batch in zip(answers, batches, strict=True)]

    async def pull_small(self, start: StartLike, limit: int, bytes_max: int) -> Page | None:
        """Returns a page as `pull_page` does, without waiting for messages. Returns None if the page is larger than
        `bytes_max`, for example because of one large message, or of keys and headers."""
        payload = encoded(PACKED_PULL, PackedPull(0, start_of(start), limit, 0, 0))
        (answer,) = await self._connection.ask(self._route, (payload,), ANSWER_TIMEOUT_S, BATCHED)
        payload = self._checked(answer, StreamNotFound)
        if len(payload) > bytes_max:
            return None
        try:
            page = decode_packed_page(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(str(error)) from error
        return Page(page.messages, page.first_index, page.next_index, page.resume_index)

    def _stored(self, answer: Message | AskTimedOut | AskRefused, messages: int) -> Stored:
        try:
            answered = decode_batch_answer(self._checked(answer, PushUnknown))
        except ClientError as error:
            return Stored(messages, -1, error)
        failure = answered.failure
        if failure is None:
            return Stored(messages, answered.index)
        return Stored(messages, -1, not_saved(PushFailure(0, failure.outcome, failure.reason), sent_again=False))

    def _checked(self, answer: Message | AskTimedOut | AskRefused, ended: type[ClientError]) -> bytes:
        """Returns the payload of an answer. Raises its error; `ended`, if the worker has ended before it answered."""
        if isinstance(answer, AskTimedOut):
            raise self.session.silence(ANSWER_TIMEOUT_S)
        if isinstance(answer, AskRefused):
            raise refusal(error_payload(answer.reason)) if is_limited(answer.reason) else ended(answer.reason)
        if ERROR.is_in(answer.payload):
            raise refusal(answer.payload, of_stream=True)
        return answer.payload


def _batches(messages: list[bytes]) -> Iterator[list[bytes]]:
    begin = size_bytes = 0
    for end, data in enumerate(messages):
        if end - begin >= BATCH_MESSAGES_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield messages[begin:end]
            begin, size_bytes = end, 0
        size_bytes += len(data)
    yield messages[begin:]
