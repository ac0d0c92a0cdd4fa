"""GrpcChannel: the connection to one other node, and the typed errors of its refusals. The connection is made when
something is asked, and again after its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from block_node.grpc.client.connection import AnswerHandler, AskedCall, AskingConnection
from block_node.grpc.http2.connection import DoorCounts
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.http2.status import CallRefused, GrpcStatus
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
        """As `AskingConnection.ask`, in the name of the client. Raises NodeUnreachable, InvalidArgument."""
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
            # The other side takes no more calls over this connection, but may keep the connection open.
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
