"""AskingConnection: one connection to a server, and the calls that this side asks for.

GrpcChannel: the connection to one other node, and the typed errors of its refusals. The connection is made when
something is asked, and again after its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import structlog
import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from block_node.grpc.http2.call_machine import CallMachine
from block_node.grpc.http2.connection import DoorCounts, GrpcConnection, ServedCall
from block_node.grpc.http2.http2_machine import ACCEPTED_HEADER, CallAnswered, CallOpened, Http2Machine
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import ACCEPTED, IDENTITY, MessageBudget, prefix_of_message
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.http2.status import CallRefused, GrpcStatus, decode_message
from ockam.actors.address import split_host_port
from ockam.actors.node import Node
from ockam.errors import OckamError
from ockam.identity.tls_layer import TlsLayer
from ockam.identity.tls_stream import connect_tls
from ockam.identity.token import Token, TokenError
from stream_client.errors import (
    AccessDenied,
    AuthenticationFailed,
    ClientError,
    InvalidArgument,
    NodeFailed,
    NodeUnreachable,
    NotSupported,
    RequestRefused,
)

ANSWER_BYTES_MAX: Final = 131_072_000
"""The largest message of an answer: the limit of the reference block node."""


class AnswerHandler(Protocol):
    """Takes the answer to one call, in the trio thread. `done` is called once, last, unless the call is cancelled."""

    def take(self, message: bytes) -> None: ...

    def room(self) -> None:
        """Called after `AskedCall.send` has returned False, when there is room."""
        return

    def done(self, status: GrpcStatus, text: str) -> None: ...


class AskedCall:
    """One call that this side has begun. The asker sends by it, and the connection uses it as a `CallHandler`."""

    logs_end = True

    def __init__(self, connection: AskingConnection, machine: CallMachine, handler: AnswerHandler) -> None:
        self._connection = connection
        self._machine = machine
        self._handler: AnswerHandler | None = handler
        self._is_held = False
        self.status: GrpcStatus | None = None
        self.text = ""

    def send(self, message: bytes, *, compressed: bool = False) -> bool:
        """Sends a message. Returns as `GrpcCall.send`. compressed: whether to compress it by the encoding in the call's
        metadata."""
        prefix = prefix_of_message(len(message), compressed=compressed)
        return self._connection.send(self._machine, [prefix, message])

    def end(self) -> None:
        self._connection.end_half(self._machine)

    def hold(self) -> None:
        """Takes no more messages of the answer until `release`. The server gets no window for them."""
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._connection.resume(self._machine.stream_id)

    def watch(self, arriving: Callable[[int], None]) -> None:
        """Calls `arriving` with the number of received bytes of the incomplete message, each time when more arrive."""
        self._machine.reader.arriving = arriving

    def cancel(self) -> None:
        """Ends the call: its handler is not called any more. Safe to repeat."""
        if self._handler is not None:
            self._handler = None
            self._connection.forget(self._machine)

    # Called by the connection.

    def may_take(self) -> bool:
        return not self._is_held

    def take(self, message: bytes) -> None:
        if self._handler is not None:
            self._handler.take(message)

    def half_closed(self) -> None:
        # An answer without a status comes from no gRPC server.
        status = GrpcStatus.UNKNOWN if self.status is None else self.status
        self._finish(status, self.text)

    def room(self) -> None:
        if self._handler is not None:
            self._handler.room()

    def ended(self, reason: str) -> None:
        self._finish(GrpcStatus.UNAVAILABLE, reason)

    def _finish(self, status: GrpcStatus, text: str) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.done(status, text)


class AskingConnection(GrpcConnection):
    """A connection that this side has opened. authority: the `host:port` that it asks for."""

    def __init__(
        self,
        stream: SocketBytes,
        authority: str,
        limits: Http2Limits,
        counts: DoorCounts,
        *,
        is_encrypted: bool = False,
        batch: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        machine = Http2Machine(limits, MessageBudget(limits.unfinished_bytes_max), trio.current_time(), is_client=True)
        super().__init__(stream, machine, limits, counts, address=authority, batch=batch)
        self._authority = authority.encode()
        self._scheme = b"https" if is_encrypted else b"http"
        self._is_leaving = False

    @property
    def may_ask(self) -> bool:
        return not self._machine.peer_leaves

    def leave(self) -> None:
        """Closes the connection as soon as no call is open. A call is open until its handler has taken all messages."""
        self._is_leaving = True
        self._note_work()

    def ask(
        self,
        path: bytes,
        handler: AnswerHandler,
        request: bytes | None = None,
        timeout_s: float | None = None,
        metadata: Sequence[tuple[bytes, bytes]] = (),
    ) -> AskedCall:
        """Begins a call. request: its only message; None: the asker sends messages by `AskedCall.send`. metadata: more
        headers. Raises CallRefused if no more calls may be open."""
        headers = [
            *((b":method", b"POST"), (b":scheme", self._scheme), (b":path", path), (b":authority", self._authority)),
            *((b"content-type", b"application/grpc"), (b"te", b"trailers"), ACCEPTED_HEADER),
            *metadata,
        ]
        if timeout_s is not None:
            headers.append((b"grpc-timeout", b"%dm" % max(1, int(timeout_s * 1000))))
        try:
            machine = self._machine.ask(headers, timeout_s, trio.current_time())
        except ProtocolError as error:
            raise CallRefused(GrpcStatus.UNAVAILABLE, f"{self.address} takes no more calls: {error}") from error
        machine.reader.bytes_max = ANSWER_BYTES_MAX
        machine.reader.when_room = lambda: self.resume(machine.stream_id)
        call = AskedCall(self, machine, handler)
        self._served[machine.stream_id] = ServedCall(machine, call)
        # The answer may be large, and is taken as it comes.
        self._machine.widen(machine, self._limits.connection_window_bytes // 2, trio.current_time())
        if request is not None:
            call.send(request)
            call.end()
        self._note_work()
        return call

    def end_half(self, machine: CallMachine) -> None:
        self._machine.end_half(machine)
        self._note_work()

    def forget(self, machine: CallMachine) -> None:
        self._served.pop(machine.stream_id, None)
        self._resumed.pop(machine.stream_id, None)
        if machine.stream_id in self._machine.calls:
            self._machine.reset(machine, ErrorCodes.CANCEL, trio.current_time())
        self._machine.stop_reading(machine)
        self._note_work()

    def _note_work(self) -> None:
        super()._note_work()
        if self._is_leaving and not self._served:
            self.close("shutdown")

    def _take_headers(self, event: CallOpened | CallAnswered) -> None:
        served = self._served.get(event.call.stream_id)
        if served is None or not isinstance(event, CallAnswered) or not isinstance(served.handler, AskedCall):
            return
        asked, headers = served.handler, event.headers
        http_status = headers.get(b":status", b"200")
        encoding = headers.get(b"grpc-encoding", b"").decode("latin-1")
        if encoding:
            event.call.reader.encoding = encoding if encoding in ACCEPTED else IDENTITY
        if b"grpc-status" in headers:
            text = headers[b"grpc-status"]
            # `int` refuses numbers with thousands of digits.
            known = len(text) <= 2 and text.isdigit() and int(text) in GrpcStatus.__members__.values()
            asked.status = GrpcStatus(int(text)) if known else GrpcStatus.UNKNOWN
            asked.text = decode_message(headers.get(b"grpc-message", b""))
        elif http_status != b"200":
            asked.status = GrpcStatus.UNAVAILABLE
            asked.text = f"the answer is HTTP {http_status.decode('latin-1')}, not gRPC"

    def _end_half(self, served: ServedCall) -> None:
        self._served.pop(served.machine.stream_id, None)
        # The server has ended the call, so this side ends its half, even if it had more to send.
        if served.machine.may_send:
            self._machine.end_half(served.machine)
        super()._end_half(served)
        self._machine.stop_reading(served.machine)

    def _tell_ended(self, machine: CallMachine, status: GrpcStatus, reason: str) -> None:
        # The side that asks tells its own handler, and logs nothing.
        pass

    def _finish(
        self, machine: CallMachine, status: GrpcStatus, text: str, *, at_once: bool = False, is_told: bool = True
    ) -> None:
        # A side that asks ends a call by a reset; the status is for its own handler.
        if machine.stream_id in self._machine.calls:
            self._machine.reset(machine, ErrorCodes.CANCEL, trio.current_time())
        self._machine.stop_reading(machine)
        self._note_work()


CONNECT_S_MAX: Final = 10.0

_REFUSALS: dict[GrpcStatus, Callable[[str], ClientError]] = {
    GrpcStatus.PERMISSION_DENIED: AccessDenied,
    GrpcStatus.UNAUTHENTICATED: lambda text: AuthenticationFailed(text, "other"),
    GrpcStatus.UNIMPLEMENTED: NotSupported,
    GrpcStatus.INVALID_ARGUMENT: RequestRefused,
    GrpcStatus.UNAVAILABLE: NodeUnreachable,
}

logger = structlog.get_logger(__name__)


class GrpcChannel:
    """The connection to one `host:port`. make_tls: makes the TLS of a connection; None: it is not encrypted.
    token: proves the client's name; None: no name is proved.

    Invariant: while `_waiting` is not empty, `_connecting` is True: a task will call its functions.
    """

    def __init__(
        self,
        node: Node,
        address: str,
        make_tls: Callable[[], TlsLayer] | None = None,
        token: Token | None = None,
    ) -> None:
        self._node = node
        self._token = token
        self._make_tls = make_tls
        self._waiting: list[tuple[Callable[[AskingConnection], None], Callable[[str], None]]] = []
        self._connection: AskingConnection | None = None
        # All open connections: the earlier ones end after their last call.
        self._running: set[AskingConnection] = set()
        self._connecting = self._is_closed = False
        self.address = address
        self.counts = DoorCounts()

    def use(self, act: Callable[[AskingConnection], None], failed: Callable[[str], None]) -> None:
        """Calls one of the two functions soon, after this call has returned: `act` with an open connection, or `failed`
        with the reason why there is none."""
        self._waiting.append((act, failed))
        if not self._connecting:
            self._connecting = True
            self._node.start_task(self._serve_waiting)

    def close(self) -> None:
        """Ends all connections, also one that is being made. Call `use` no more."""
        self._is_closed = True
        for connection in self._running:
            connection.close("unused")

    async def connection(self) -> AskingConnection:
        """Returns an open connection. Raises NodeUnreachable."""
        found: list[AskingConnection | str] = []
        done = trio.Event()

        def use(connection: AskingConnection | str) -> None:
            found.append(connection)
            done.set()

        self.use(use, use)
        await done.wait()
        [connection] = found
        if isinstance(connection, str):
            raise NodeUnreachable(f"{self.address} is {connection}")
        return connection

    def ask(
        self,
        connection: AskingConnection,
        path: bytes,
        handler: AnswerHandler,
        request: bytes | None = None,
        timeout_s: float | None = None,
    ) -> AskedCall:
        """Calls `AskingConnection.ask` with the token of the client. Raises NodeUnreachable, InvalidArgument."""
        metadata = []
        if self._token is not None:
            try:
                metadata.append((b"authorization", f"Bearer {self._token.read()}".encode()))
            except TokenError as error:
                raise InvalidArgument(str(error)) from error
        try:
            return connection.ask(path, handler, request, timeout_s, metadata)
        except CallRefused as refused:
            raise NodeUnreachable(refused.text) from refused

    def error_of(self, status: GrpcStatus, text: str) -> ClientError:
        """Returns the error for the end of a call. After `NodeUnreachable` or `NodeFailed`, a later try can succeed."""
        make = _REFUSALS.get(status, NodeFailed)
        return make(f"{self.address} answers {status.name}: {text or 'it says no more'}")

    async def _serve_waiting(self) -> None:
        await trio.lowlevel.checkpoint()
        reason = ""
        connection = self._connection
        if connection is None or not connection.may_ask:
            # The server takes no more calls over this connection, but may keep the connection open.
            if connection is not None:
                connection.leave()
            try:
                connection = await self._connect()
            except (OSError, UnicodeError, OckamError, trio.BrokenResourceError, trio.TooSlowError) as error:
                reason = f"unreachable: {error or 'it does not answer'}"
            except RuntimeError as error:
                # The system has no room for the thread that looks up the name.
                reason = f"unreachable: {error}"
            else:
                self._connection = connection
                opened = connection
                self._running.add(opened)
                if self._is_closed:
                    opened.close("unused")
                self._node.start_task(lambda: self._run(opened))
        waiting, self._waiting = self._waiting, []
        self._connecting = False
        with self._node.batch():
            for act, failed in waiting:
                try:
                    if reason or connection is None:
                        failed(reason)
                    else:
                        act(connection)
                except Exception:
                    logger.exception("grpc_call_failed", peer=self.address)

    async def _connect(self) -> AskingConnection:
        with trio.fail_after(CONNECT_S_MAX):
            stream = await trio.open_tcp_stream(*split_host_port(self.address))
            layer = None
            if self._make_tls is not None:
                layer = self._make_tls()
                try:
                    await connect_tls(stream, layer)
                except BaseException:
                    stream.socket.close()
                    raise
        return AskingConnection(
            SocketBytes(stream, layer),
            self.address,
            Http2Limits(),
            self.counts,
            is_encrypted=layer is not None,
            batch=self._node.batch,
        )

    async def _run(self, connection: AskingConnection) -> None:
        try:
            await connection.run()
        except Exception:
            logger.exception("grpc_connection_failed", peer=self.address)
        finally:
            self._running.discard(connection)
            if self._connection is connection:
                self._connection = None
