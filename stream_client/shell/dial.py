"""`dial`: opens the connections of both clients: TCP, the TLS handshake, the framing, the proof of the client's name.

It is written once, as a coroutine over a `DialLine`. The async client awaits it. The line of the blocking client waits
for its socket and never suspends, so `run_now` runs the coroutine to its end.

A client with a token proves its name before it sends anything else. A token is sent over TLS, or to this machine, and
nowhere else. No other messages are exchanged here.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ockam.actors.address import local, split_host_port
from ockam.actors.message import HERE, Message
from ockam.errors import RemoteProtocolError
from ockam.identity.authentication import AUTHENTICATE, NODE_AUTHENTICATE, AuthenticateRequest, TokenStatus
from ockam.identity.token import Token, TokenError, is_this_machine
from ockam.protocol import ProtocolError
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client.core.client_connection import opens_as_node
from stream_client.errors import (
    AuthenticationFailed,
    NodeUnreachable,
    TlsFailed,
    UnexpectedAnswer,
    not_a_stream_node,
    silent,
)
from stream_client.shell.base_shell import CONNECT_TIMEOUT_S, Framing

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.tls_layer import TlsLayer

TLS_ADVICE = {
    "tls_expired": "renew the certificate, and look at the clocks of both machines",
    "tls_files": "correct the file, or name another one",
    "tls_no_certificate": "give this client its certificate and key: Tls(certificate=…, key=…), --tls-cert, --tls-key",
    "tls_not_tls": "connect without TLS, or give the node a certificate (its setting tls_certificate)",
    "tls_other": "the log of the node may say more",
    "tls_refused": "the log of the node says why",
    "tls_revoked": "ask the operator of the node for a new certificate",
    "tls_timeout": "the node may be overloaded",
    "tls_unknown_ca": "compare the authorities: Tls(ca=…) or --tls-ca here, tls_client_ca at the node",
    "tls_version": "the node, or a proxy before it, must be updated",
    "tls_wrong_name": "call the node by a name in its certificate, or give this name as Tls(server_name=…)",
}
"""The advice at the end of the error's text, by kind of fault."""

TOKEN_KINDS: dict[int, str] = {
    TokenStatus.UNKNOWN: "unknown",
    TokenStatus.EXPIRED: "expired",
    TokenStatus.REVOKED: "revoked",
    TokenStatus.UNENCRYPTED: "unencrypted",
    TokenStatus.SECOND: "second",
}
"""The kind of an AuthenticationFailed for each status of the node. Every other status is the kind `other`."""
TOKEN_ADVICE = {
    "unknown": "give this client the token that `stream-node token create` has shown on that node",
    "unencrypted": "connect with TLS: Tls(ca=…), --tls-ca or STREAM_NODE_TLS_CA",
}
"""The advice at the end of the error's text, by kind. For the other kinds, the node's reason says what to do."""

S = TypeVar("S")
T = TypeVar("T")


class DialLine(Protocol[S]):
    """The TCP connection that is being opened. stream: the socket or stream of the present connection."""

    _stream: S | None = None

    @property
    def stream(self) -> S:
        assert self._stream is not None, "it is connected"
        return self._stream

    @property
    def peer_host(self) -> str:
        """The IP address of the other side. Raises OSError if the connection has ended."""
        ...

    def within(self, seconds: float) -> AbstractContextManager[object]:
        """Bounds the time of the block. After this time, a call in the block, or its end, raises TimeoutError."""
        ...

    async def connect(self, host: str, port: int) -> None:
        """Connects, after an earlier connection was closed. Raises OSError."""
        ...

    async def send(self, data: bytes) -> None:
        """Sends bytes. They are lost if the other side has gone, and `receive` then shows that."""
        ...

    async def receive(self) -> bytes:
        """Returns the next bytes; none if the other side has ended the connection, or if the connection broke."""
        ...

    async def close(self) -> None: ...


class Dialled(NamedTuple, Generic[S]):
    """A new connection, its framing, the decrypted bytes already received, and its open TLS layer if it has one. If
    bytes were received, the hello (the byte before the first frame) was sent over it."""

    stream: S
    wire: Wire
    received: bytes = b""
    tls: TlsLayer | None = None


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits for an event loop, and a blocking client has none")


async def dial(
    line: DialLine[S],
    address: str,
    framing: Framing,
    auto_wait_s: float,
    tls: Tls | None,
    token: Token | None = None,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Dialled[S]:
    """Opens a new connection to the node. With a token, also proves the client's name to the node.

    auto_wait_s: how many seconds to wait for the node's hello with the framing "auto".
    timeout_s: how many seconds each step may take: to connect, to exchange hellos, to prove the name.

    Raises NodeUnreachable or AuthenticationFailed.
    """
    # Whatever fails or is cancelled here must not leave a connection open.
    try:
        layer = await _call(line, address, tls, timeout_s)
        # A node refuses the client's certificate only after the handshake, so without a wait for its hello a refused
        # connection would look open. And a token must not be sent to a server of another kind.
        if framing == "legacy" or (framing == "head" and layer is None and token is None):
            dialled = Dialled(line.stream, HEAD if framing == "head" else LEGACY, tls=layer)
        elif hello := await _greet(line, address, layer, auto_wait_s if framing == "auto" else timeout_s):
            dialled = Dialled(line.stream, HEAD, hello, layer)
        elif framing == "head":
            if layer is None:
                raise silent(address)
            what = "completes the TLS handshake and then sends nothing: it stands still, or it is no stream node"
            raise NodeUnreachable(f"{address} {what}")
        else:
            # A legacy node takes our hello for the beginning of a frame and waits for the rest, so this connection is
            # useless.
            await line.close()
            layer = await _call(line, address, tls, timeout_s)
            dialled = Dialled(line.stream, LEGACY, tls=layer)
        return dialled if token is None else await _authenticate(line, address, dialled, token, timeout_s)
    except BaseException:
        await line.close()
        raise


async def _call(line: DialLine[S], address: str, tls: Tls | None, timeout_s: float) -> TlsLayer | None:
    """Opens a TCP connection, and completes the TLS handshake if there are TLS settings. Raises NodeUnreachable."""
    host, port = split_host_port(address)
    layer = None
    if tls is not None:
        from ockam.identity.tls import TlsFilesError

        try:
            layer = tls.layer(address)
        except TlsFilesError as error:
            raise tls_failed(address, RemoteProtocolError("tls_files", str(error))) from error
    try:
        with line.within(timeout_s):
            await line.connect(host, port)
            if layer is not None:
                await _shake_hands(line, address, layer)
    except TimeoutError as error:
        raise NodeUnreachable(f"cannot reach a node at {address}: no answer in {timeout_s:g} s") from error
    # Trio raises UnicodeError for some host names with letters beyond ASCII that `split_host_port` accepts. A name is
    # looked up in a thread, and Python raises RuntimeError if the system has no room for one more.
    except (OSError, UnicodeError, RuntimeError) as error:
        raise NodeUnreachable(f"cannot reach a node at {address}: {_reason(error)}") from error
    return layer


async def _shake_hands(line: DialLine[S], address: str, layer: TlsLayer) -> None:
    from ockam.identity.tls_layer import ENDED_IN_HANDSHAKE

    try:
        reply = layer.handshake()
        while True:
            if reply:
                await line.send(reply)
            if layer.is_open:
                return
            if not (data := await line.receive()):
                raise tls_failed(address, RemoteProtocolError("tls_not_tls", ENDED_IN_HANDSHAKE))
            reply = layer.handshake(data)
    except RemoteProtocolError as fault:
        # The alert tells the node why this client ends the connection.
        await line.send(getattr(fault, "alert", b""))
        raise tls_failed(address, fault) from fault


async def _greet(line: DialLine[S], address: str, layer: TlsLayer | None, wait_s: float) -> bytes:
    """Sends the hello of the framing "head" (Ockam since June 2024), and returns the bytes that arrive in time: none
    from a node with the framing "legacy". Raises TlsFailed if the node refuses this client's certificate."""
    received = b""
    try:
        with suppress(TimeoutError), line.within(wait_s):
            await line.send(HEAD.hello if layer is None else layer.encrypt(HEAD.hello))
            # A record of TLS can come in pieces, or carry no data of the node.
            while not received and not (layer is not None and layer.ended):
                if not (data := await line.receive()):
                    return b""
                received = data if layer is None else layer.decrypt(data)
        # A node that refuses the certificate says so after the handshake, before its hello.
        if layer is not None:
            from ockam.identity.tls_layer import REFUSED

            if received.startswith(REFUSED):
                reason = received.removeprefix(REFUSED).decode("ascii", "replace").strip()
                raise RemoteProtocolError("tls_revoked" if "revoked" in reason else "tls_refused", reason)
    except RemoteProtocolError as fault:
        raise tls_failed(address, fault) from fault
    return received


async def _authenticate(
    line: DialLine[S], address: str, dialled: Dialled[S], token: Token, timeout_s: float
) -> Dialled[S]:
    _, wire, received, layer = dialled
    try:
        host = line.peer_host
    except OSError as error:
        raise NodeUnreachable(f"{address} ended the connection before the token was sent") from error
    if layer is None and not is_this_machine(host):
        unencrypted = "it is another machine, and the connection to it is not encrypted; nothing was sent"
        raise _token_refused(address, "unencrypted", unencrypted)
    # The token is a secret: only a node gets it, and nobody else.
    if wire.hello and not opens_as_node(received, wire):
        return dialled
    try:
        payload = AUTHENTICATE.encode_request(AuthenticateRequest(1, token.read()))
    except TokenError as error:
        raise NodeUnreachable(f"cannot authenticate at {address}: {error}") from error
    message = Message((local("-"), NODE_AUTHENTICATE), (local("token"),), payload)
    request = FrameWriter(wire).encode([message], _too_large)[1]
    reader, early = FrameReader(wire, HERE), received[len(wire.hello) :]
    silence = NodeUnreachable(
        f"{address} does not answer to the token: it is overloaded, has ended the connection, or is of a version "
        "without tokens"
    )
    try:
        with line.within(timeout_s):
            await line.send(request if layer is None else layer.encrypt(request))
            # The answer can come in pieces.
            is_accepted = False
            while not is_accepted:
                if not (data := await line.receive()):
                    raise silence
                data, early = early + (data if layer is None else layer.decrypt(data)), b""
                is_accepted = _accepts(address, reader, data)
    except TimeoutError as error:
        raise silence from error
    except RemoteProtocolError as fault:
        raise tls_failed(address, fault) from fault
    return dialled._replace(received=wire.hello)


def _accepts(address: str, reader: FrameReader, data: bytes) -> bool:
    """Whether the node accepts the token; false while its answer is not complete. Raises AuthenticationFailed if the
    node refuses the token, and NodeUnreachable if the other side answers something else."""
    try:
        messages = reader.feed(data)
        if not messages:
            return False
        answer = AUTHENTICATE.decode_response(messages[0].payload)
        if answer.status != TokenStatus.OK:
            raise _token_refused(address, TOKEN_KINDS.get(answer.status, "other"), answer.reason)
        # A node sends nothing but the answer before the first request.
        if len(messages) > 1 or reader.waiting_bytes:
            raise ProtocolError("more than the answer has come")
    except (RemoteProtocolError, ProtocolError) as error:
        raise NodeUnreachable(f"what {address} answers to a token is not what a node answers: {error}") from error
    return True


def _reason(error: BaseException) -> str:
    """Returns the reason why a connection could not be made. AnyIO hides it in the cause of its own error."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    return str(cause)


def tls_failed(address: str, fault: RemoteProtocolError) -> TlsFailed:
    """Returns the client's error for a fault of TLS. Its text ends with the advice for `fault.kind` (TLS_ADVICE)."""
    advice = TLS_ADVICE.get(fault.kind, TLS_ADVICE["tls_other"])
    return TlsFailed(f"no TLS connection to {address}: {fault}; {advice}", fault.kind)


def error_of(address: str, fault: RemoteProtocolError) -> UnexpectedAnswer | TlsFailed:
    """Returns the client's error for received bytes that no node sends (NotAStreamNode if they are the first ones), or
    for a fault of TLS."""
    if fault.kind.startswith("tls_"):
        return tls_failed(address, fault)
    if fault.kind == "header":
        return not_a_stream_node(address, str(fault))
    return UnexpectedAnswer(f"what {address} sends is not what a node sends: {fault}")


def _token_refused(address: str, kind: str, reason: str) -> AuthenticationFailed:
    advice = f"; {TOKEN_ADVICE[kind]}" if kind in TOKEN_ADVICE else ""
    return AuthenticationFailed(f"the token is not accepted at {address}: {reason}{advice}", kind)


def _too_large(error: Exception) -> None:
    raise AssertionError("a token fits into every frame") from error
