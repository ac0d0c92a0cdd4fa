"""GrpcPeer: how a client asks the node at the other end of a channel, and the typed errors of its refusals."""

from __future__ import annotations

from collections.abc import Callable

import trio

from block_node.grpc.client.channel import GrpcChannel
from block_node.grpc.client.connection import AnswerHandler, AskedCall, AskingConnection
from block_node.grpc.http2.status import CallRefused, GrpcStatus
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

_REFUSALS: dict[GrpcStatus, Callable[[str], ClientError]] = {
    GrpcStatus.PERMISSION_DENIED: AccessDenied,
    GrpcStatus.UNAUTHENTICATED: lambda text: AuthenticationFailed(text, "other"),
    GrpcStatus.UNIMPLEMENTED: NotSupported,
    GrpcStatus.INVALID_ARGUMENT: RequestRefused,
    GrpcStatus.UNAVAILABLE: NodeUnreachable,
}


class GrpcPeer:
    """The node at the other end. token: proves the client's name; None: no name is proved."""

    def __init__(self, channel: GrpcChannel, token: Token | None = None) -> None:
        self._channel = channel
        self._token = token

    @property
    def address(self) -> str:
        return self._channel.address

    async def connection(self) -> AskingConnection:
        """Returns an open connection. Raises NodeUnreachable."""
        found: list[AskingConnection] = []
        reasons: list[str] = []
        done = trio.Event()

        def use(connection: AskingConnection) -> None:
            found.append(connection)
            done.set()

        def failed(reason: str) -> None:
            reasons.append(reason)
            done.set()

        self._channel.use(use, failed)
        await done.wait()
        if not found:
            raise NodeUnreachable(f"{self.address} is {reasons[0]}")
        return found[0]

    def ask(
        self,
        connection: AskingConnection,
        path: bytes,
        handler: AnswerHandler,
        request: bytes | None = None,
        timeout_s: float | None = None,
    ) -> AskedCall:
        """Begins a call, as `AskingConnection.ask`, in the name of this client. Raises NodeUnreachable, or
        InvalidArgument if the token cannot be read."""
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
