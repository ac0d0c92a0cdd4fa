"""`dial`: opens the connections of both clients: TCP, the TLS handshake, the framing, the proof of the client's name.

It is written once, as a coroutine over a `DialLine`. The async client awaits it. The line of the blocking client waits
for its socket and never suspends, so `run_now` runs the coroutine to its end. No messages are exchanged here.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ockam.actors.address import split_host_port
from ockam.errors import RemoteProtocolError
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client.errors import NodeUnreachable, silent, unanswered
from stream_client.shell.base_shell import CONNECT_TIMEOUT_S, Framing
from stream_client.shell.tls import check_refusal, ended_in_handshake, new_layer, silent_over_tls, tls_failed
from stream_client.shell.token import TokenExchange

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.tls_layer import TlsLayer
    from ockam.identity.token import Token

S = TypeVar("S", covariant=True)
T = TypeVar("T")


class DialLine(Protocol[S]):
    """The TCP connection that is being opened. stream: the socket or stream of the present connection."""

    @property
    def stream(self) -> S: ...

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
    raise AssertionError("a blocking line does not suspend")


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
            raise silent(address) if layer is None else silent_over_tls(address)
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
    layer = None if tls is None else new_layer(tls, address)
    try:
        with line.within(timeout_s):
            await line.connect(host, port)
            if layer is not None:
                await _shake_hands(line, address, layer)
    except TimeoutError as error:
        raise unanswered(address, timeout_s) from error
    # Trio raises UnicodeError for some host names with letters beyond ASCII that `split_host_port` accepts. A name is
    # looked up in a thread, and Python raises RuntimeError if the system has no room for one more.
    except (OSError, UnicodeError, RuntimeError) as error:
        raise NodeUnreachable(f"cannot reach a node at {address}: {_reason(error)}") from error
    return layer


async def _shake_hands(line: DialLine[S], address: str, layer: TlsLayer) -> None:
    try:
        reply = layer.handshake()
        while True:
            if reply:
                await line.send(reply)
            if layer.is_open:
                return
            if not (data := await line.receive()):
                raise ended_in_handshake(address)
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
            check_refusal(address, received)
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
    exchange = TokenExchange(address, token, wire, received, host=host, is_encrypted=layer is not None)
    # The token is a secret: only a node gets it, and nobody else.
    if not exchange.is_node:
        return dialled
    request = exchange.request()
    try:
        with line.within(timeout_s):
            await line.send(request if layer is None else layer.encrypt(request))
            # The answer can come in pieces.
            while not exchange.is_done:
                if not (data := await line.receive()):
                    raise exchange.silence()
                exchange.receive(data if layer is None else layer.decrypt(data))
    except TimeoutError as error:
        raise exchange.silence() from error
    except RemoteProtocolError as fault:
        raise tls_failed(address, fault) from fault
    return dialled._replace(received=exchange.first_bytes())


def _reason(error: BaseException) -> str:
    """Returns the reason why a connection could not be made. AnyIO hides it in the cause of its own error."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    return str(cause)
