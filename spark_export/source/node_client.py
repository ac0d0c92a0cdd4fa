"""The connection of a Spark process to a node, which sends requests and receives answers.

The connection never repeats a request. This module uses only the standard library, pyarrow and modules that Spark sends
to workers, because a worker need not have this project installed. Programs with this project installed use
`stream_client`, which also reconnects.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from spark_export.errors import (
    BadAnswer,
    ConnectionBroken,
    ConnectionForked,
    NodeRefused,
    SourceTlsFailed,
    SourceUnreachable,
    StreamMissing,
)
from spark_export.source.endpoint import resolve_endpoint, split_endpoint
from spark_export.source.node_tls import ALERT, REFUSED, NodeTls, tls_failed, tls_needed
from spark_export.source.node_token import ADDRESS, PROTOCOL, NodeToken, check_answer
from spark_export.source.node_wire import (
    FRAME_BYTES_MAX,
    HELLO,
    Answer,
    BareReader,
    StoredPage,
    StreamEnds,
    data,
    frame,
    optional,
    payload,
    read_frame,
    read_page,
    read_stream_info,
    stream_address,
    text,
    u64,
    uint,
)

CONNECT_TIMEOUT_S = 10.0
RECEIVE_BUFFER_BYTES = 256 * 1024
LIST_PAGE = 1_000
QUIET_S = 2.0
"""The silence of the node, in seconds, after which `NodeConnection.when_quiet` is called."""
PULL_PAGE_MESSAGES = 1_000


class Way(Protocol):
    """The options by which a process reaches a node; `spark_export.source.options` has them for reads and writes."""

    @property
    def endpoint(self) -> str: ...
    @property
    def request_timeout_s(self) -> float: ...
    @property
    def tls(self) -> NodeTls | None: ...
    @property
    def token(self) -> NodeToken | None: ...


class NodeConnection:
    """A connection to a node, as a context manager. Raises SourceUnreachable, TokenRefused.

    timeout_s: the seconds without data after which the wait for an answer ends.
    when_quiet: called once in each wait of more than QUIET_S, and can raise. A node does not answer requests to a
        deleted stream, so the function can ask elsewhere whether the stream exists.
    """

    def __init__(
        self, endpoint: str, timeout_s: float, tls: NodeTls | None = None, token: NodeToken | None = None
    ) -> None:
        self.endpoint = resolve_endpoint(endpoint)
        self._process = os.getpid()
        self._number = 0
        self.when_quiet: Callable[[], None] | None = None
        try:
            plain = socket.create_connection(split_endpoint(self.endpoint), min(timeout_s, CONNECT_TIMEOUT_S))
        except OSError as error:
            raise SourceUnreachable(
                f"cannot reach a stream node at {self.endpoint}: {error}; set the option endpoint, and start the node"
            ) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = plain if tls is None else tls.wrap(plain, self.endpoint)
        except BaseException:
            plain.close()
            raise
        self._incoming = io.BufferedReader(_Incoming(self._socket), RECEIVE_BUFFER_BYTES)
        self._unsent = HELLO
        self._greeted = False
        if tls is not None:
            self._greet_over_tls()
        if token is not None:
            self._authenticate(token, is_encrypted=tls is not None)
        self._socket.settimeout(timeout_s)

    def _authenticate(self, token: NodeToken, *, is_encrypted: bool) -> None:
        try:
            token.check_way(self.endpoint, self._socket.getpeername()[0], is_encrypted)
            # A token is sent to a node only, so its hello is awaited first.
            if not self._greeted:
                self._send_bytes(HELLO)
                self._unsent = b""
                self._receive_hello()
            self.send(ADDRESS, PROTOCOL, token.request())
            check_answer(self.endpoint, self.receive())
        except BaseException:
            self.close()
            raise

    def _greet_over_tls(self) -> None:
        """Exchanges the hello bytes. Raises SourceTlsFailed if the node now refuses this process's certificate."""
        try:
            self._socket.sendall(HELLO)
            first = self._incoming.read(1)
            if first and first != HELLO:
                first += self._incoming.readline(200)
        except ssl.SSLError as error:
            self.close()
            raise tls_failed(self.endpoint, error) from error
        except OSError as error:
            self.close()
            raise SourceUnreachable(f"{self.endpoint} does not answer over TLS: {error}") from error
        if first.startswith(REFUSED):
            self.close()
            raise SourceTlsFailed(f"{self.endpoint} refuses tlsCert: {first.removeprefix(REFUSED).decode().strip()}")
        if first != HELLO:
            self.close()
            raise SourceUnreachable(
                f"{self.endpoint} ended the connection after the TLS handshake: is it a stream node?"
            )
        self._unsent, self._greeted = b"", True

    @classmethod
    def to(cls, way: Way) -> Self:
        return cls(way.endpoint, way.request_timeout_s, way.tls, way.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def send(self, address: bytes, protocol: str, body: bytes, return_address: bytes | None = None) -> bytes:
        """Sends a request. Returns the address of its answer, by default a new `spark-…`. Raises ConnectionBroken."""
        if return_address is None:
            self._number += 1
            return_address = b"spark-%d" % self._number
        # The hello byte is sent with the first frame, because the node does not answer a hello byte alone.
        sent, self._unsent = self._unsent + frame(address, return_address, payload(protocol, body)), b""
        self._send_bytes(sent)
        return return_address

    def receive(self) -> Answer:
        """Returns the next answer to any request, also an `error`. Raises ConnectionBroken, BadAnswer."""
        self._check_process()
        self._receive_hello()
        while True:
            self._notice_quiet()
            (size,) = struct.unpack(">I", self._read(4))
            if size > FRAME_BYTES_MAX:
                raise BadAnswer(f"{self.endpoint} sends a frame of {size} bytes: it is no stream node")
            answer = read_frame(self._read(size))
            if answer is not None:
                return answer

    def _receive_hello(self) -> None:
        if self._greeted:
            return
        first = self._read(1)
        if first[0] == ALERT:
            raise tls_needed(self.endpoint)
        if first != HELLO:
            raise BadAnswer(f"{self.endpoint} does not speak the head framing of Ockam: it is no stream node")
        self._greeted = True

    def ask(self, address: bytes, protocol: str, body: bytes) -> memoryview:
        """Sends a request and returns the body of its answer. Raises NodeRefused, ConnectionBroken, BadAnswer."""
        wanted = self.send(address, protocol, body)
        while True:
            answer = self.receive()
            if answer.return_address == wanted:
                return body_of(answer, protocol)

    def list_streams(self, prefix: str = "") -> Iterator[StreamEnds]:
        """Yields the partitions of all streams whose name begins with `prefix`, ordered by name and partition."""
        after: bytes | None = None
        while True:
            request = uint(1) + text(prefix) + optional(after) + uint(LIST_PAGE)
            reader = BareReader(self.ask(b"stream_service", "node/stream_list/1", request))
            reader.uint()
            last: StreamEnds | None = None
            for _ in range(reader.uint()):
                last = read_stream_info(reader)
                yield last
            if not reader.is_there() or last is None:
                return
            after = text(last.stream) + uint(last.partition)

    def list_partitions(self, stream: str) -> list[StreamEnds]:
        """Returns all partitions of one stream in order; an empty list if the stream does not exist."""
        found = []
        for each in self.list_streams(stream):
            # A longer name that begins with this name is sorted after this name.
            if each.stream != stream:
                break
            found.append(each)
        return found

    def create_stream(self, stream: str, partitions: int) -> None:
        """Creates a stream, or the missing partitions of an existing stream. Raises as `ask`."""
        body = optional(text(stream)) + uint(partitions)
        wanted = self.send(b"stream_service", "stream_create_partitioned", body)
        made = 0
        while made < partitions:
            answer = self.receive()
            if answer.return_address == wanted:
                body_of(answer, "stream_create_partitioned")
                made += 1

    def pull(self, stream: str, partition: int, index: int, limit: int) -> StoredPage:
        """Returns a page of up to `limit` messages with keys, headers and times. Raises as `ask`."""
        start = uint(0) + uint(index)
        return self._pull(stream, partition, start, limit)

    def index_at(self, stream: str, partition: int, time_us: int) -> int:
        """Returns the index of the first message stored at `time_us` or later, else that after the last message."""
        page = self._pull(stream, partition, uint(1) + u64(max(0, time_us)), 1)
        return page.messages[0].index if page.messages else page.resume_index

    def _pull(self, stream: str, partition: int, start: bytes, limit: int) -> StoredPage:
        body = uint(1) + start + uint(limit) + uint(0)
        return read_page(self.ask(stream_address(stream, partition), "node/stream_pull/1", body))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ConnectionForked(
                f"this connection to {self.endpoint} belongs to process {self._process}, from which this process was "
                "forked; open a connection here, after the fork"
            )

    def _send_bytes(self, sent: bytes) -> None:
        self._check_process()
        try:
            self._socket.sendall(sent)
        except OSError as error:
            raise ConnectionBroken(f"the connection to {self.endpoint} broke while sending: {error}") from error

    def _notice_quiet(self) -> None:
        """Calls `when_quiet` if the next frame from the node does not begin within QUIET_S."""
        timeout_s = self._socket.gettimeout()
        if self.when_quiet is None or timeout_s is None or timeout_s <= QUIET_S:
            return
        self._socket.settimeout(QUIET_S)
        try:
            self._incoming.peek(1)
        except TimeoutError:
            self.when_quiet()
        except OSError:
            # The next read of the answer meets the same error, and reports it.
            pass
        finally:
            self._socket.settimeout(timeout_s)

    def _read(self, size: int) -> memoryview:
        # Arrow reuses a block of several megabytes for the next answer; the C library would return it to the system.
        taken = memoryview(pa.allocate_buffer(size)).cast("B")
        at = 0
        try:
            while at < size:
                count = self._incoming.readinto(taken[at:])
                if not count:
                    raise ConnectionBroken(f"{self.endpoint} ended the connection inside an answer")
                at += count
        except TimeoutError as error:
            raise ConnectionBroken(
                f"{self.endpoint} has not answered in {self._socket.gettimeout()} s: is the stream still there?"
            ) from error
        except OSError as error:
            raise ConnectionBroken(f"the connection to {self.endpoint} broke: {error}") from error
        return taken


class _Incoming(io.RawIOBase):
    """The receiving side of a socket as a raw file, which can be read again after a timeout."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._connection.recv_into(buffer)


def body_of(answer: Answer, protocol: str) -> memoryview:
    """Returns the body of an answer. Raises NodeRefused, and BadAnswer for another protocol."""
    if answer.protocol == "error":
        raise NodeRefused(BareReader(answer.body).text())
    if answer.protocol != protocol:
        raise BadAnswer(f"an answer of {answer.protocol!r} to a request of {protocol!r}")
    return answer.body


def push_body(request_id: int, message: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> bytes:
    """Encodes the body of a `node/stream_push/1` request without the last field (publisher id, sequence number)."""
    listed = b"".join(text(name) + data(value) for name, value in headers)
    return uint(request_id) + data(message) + optional(None if key is None else data(key)) + uint(len(headers)) + listed


def require_partitions(found: list[StreamEnds], stream: str) -> list[StreamEnds]:
    """Returns the partitions. Raises StreamMissing if there are none."""
    if not found:
        raise StreamMissing(f"the node has no stream {stream!r}; create it, or subscribe to another")
    return found
