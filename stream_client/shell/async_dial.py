"""Opens the connections of the async client: TCP, the TLS handshake, and the framing. It exchanges no messages."""

from __future__ import annotations

import socket
from typing import NamedTuple

import anyio
import anyio.abc

from ockam.actors.address import split_host_port
from ockam.errors import RemoteProtocolError
from ockam.identity.tls import Tls
from ockam.identity.tls_layer import TlsLayer
from ockam.identity.token import Token
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client.errors import NodeUnreachable, silent, unanswered
from stream_client.shell.defaults import CONNECT_TIMEOUT_S, READ_BYTES_MAX, Framing
from stream_client.shell.tls import check_refusal, ended_in_handshake, new_layer, silent_over_tls, tls_failed
from stream_client.shell.token import TokenExchange


class Dialled(NamedTuple):
    """A new connection, its framing, the decrypted bytes already received, and its open TLS layer if it has one."""

    stream: anyio.abc.SocketStream
    wire: Wire
    received: bytes = b""
    tls: TlsLayer | None = None


async def dial(
    address: str,
    framing: Framing,
    auto_wait_s: float,
    tls: Tls | None,
    token: Token | None = None,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Dialled:
    """Opens a new connection to the node. With a token, also proves the client's name to the node.

    auto_wait_s: how many seconds to wait for the node's hello with the framing "auto".
    timeout_s: how many seconds each step may take: to connect, to exchange hellos, to prove the name.

    Raises NodeUnreachable or AuthenticationFailed.
    """
    dialled = await _dial(address, framing, auto_wait_s, tls, timeout_s, greets=token is not None)
    if token is None:
        return dialled
    try:
        return await _authenticate(address, dialled, token, timeout_s)
    except BaseException:
        await anyio.aclose_forcefully(dialled.stream)
        raise


async def _dial(
    address: str, framing: Framing, auto_wait_s: float, tls: Tls | None, timeout_s: float, *, greets: bool
) -> Dialled:
    stream, layer = await _call(address, tls, timeout_s)
    # A node refuses the client's certificate only after the handshake, so without a wait for its hello a refused
    # connection would look open. And a token must not be sent to a server of another kind.
    if framing == "legacy" or (framing == "head" and layer is None and not greets):
        return Dialled(stream, HEAD if framing == "head" else LEGACY, tls=layer)
    hello = await _greet(address, stream, layer, auto_wait_s if framing == "auto" else timeout_s)
    if hello:
        return Dialled(stream, HEAD, hello, layer)
    # A legacy node takes our hello for the beginning of a frame, so this connection is useless.
    await anyio.aclose_forcefully(stream)
    if framing == "head":
        raise silent(address) if layer is None else silent_over_tls(address)
    stream, layer = await _call(address, tls, timeout_s)
    return Dialled(stream, LEGACY, tls=layer)


async def _authenticate(address: str, dialled: Dialled, token: Token, timeout_s: float) -> Dialled:
    stream, wire, received, layer = dialled
    try:
        host = stream.extra(anyio.abc.SocketAttribute.remote_address)[0]
    except (OSError, anyio.TypedAttributeLookupError) as error:
        raise NodeUnreachable(f"{address} ended the connection before the token was sent") from error
    exchange = TokenExchange(address, token, wire, received, host=str(host), is_encrypted=layer is not None)
    # The token is a secret: only a node gets it, and nobody else.
    if not exchange.is_node:
        return dialled
    request = exchange.request()
    try:
        with anyio.fail_after(timeout_s):
            await stream.send(request if layer is None else layer.encrypt(request))
            # The answer can come in pieces.
            while not exchange.is_done:
                data = await stream.receive(READ_BYTES_MAX)
                exchange.receive(data if layer is None else layer.decrypt(data))
    except (TimeoutError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
        raise exchange.silence() from error
    except RemoteProtocolError as fault:
        raise tls_failed(address, fault) from fault
    return Dialled(stream, wire, exchange.first_bytes(), layer)


async def _call(address: str, tls: Tls | None, timeout_s: float) -> tuple[anyio.abc.SocketStream, TlsLayer | None]:
    """Opens a TCP connection, and completes the TLS handshake if there are TLS settings. Raises NodeUnreachable."""
    host, port = split_host_port(address)
    layer = None if tls is None else new_layer(tls, address)
    stream: anyio.abc.SocketStream | None = None
    try:
        with anyio.fail_after(timeout_s):
            stream = await anyio.connect_tcp(host, port)
            if layer is not None:
                await _shake_hands(address, stream, layer)
    except TimeoutError as error:
        raise unanswered(address, timeout_s) from error
    except OSError as error:
        raise NodeUnreachable(f"cannot reach a node at {address}: {_reason(error)}") from error
    finally:
        # A failed or cancelled handshake must not leave its connection open.
        if stream is not None and layer is not None and not layer.is_open:
            await anyio.aclose_forcefully(stream)
    return stream, layer


async def _shake_hands(address: str, stream: anyio.abc.SocketStream, layer: TlsLayer) -> None:
    try:
        reply = layer.handshake()
        while True:
            if reply:
                await stream.send(reply)
            if layer.is_open:
                return
            reply = layer.handshake(await stream.receive(READ_BYTES_MAX))
    except RemoteProtocolError as fault:
        alert = getattr(fault, "alert", b"")
        if alert:
            await _send_last(stream, alert)
        raise tls_failed(address, fault) from fault
    except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
        raise ended_in_handshake(address) from error


async def _send_last(stream: anyio.abc.SocketStream, alert: bytes) -> None:
    """Sends the alert that says why this client ends the connection, if the node still reads."""
    try:
        await stream.send(alert)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def _greet(address: str, stream: anyio.abc.SocketStream, layer: TlsLayer | None, wait_s: float) -> bytes:
    """Sends the hello of the framing "head" (Ockam since June 2024), and returns the bytes that arrive in time: none
    from a node with the framing "legacy". Raises TlsFailed if the node refuses this client's certificate."""
    received = b""
    try:
        with anyio.move_on_after(wait_s):
            await stream.send(HEAD.hello if layer is None else layer.encrypt(HEAD.hello))
            # A record of TLS can come in pieces, or carry no data of the node.
            while not received and not (layer is not None and layer.ended):
                received = await stream.receive(READ_BYTES_MAX)
                if layer is not None:
                    received = layer.decrypt(received)
        # A node that refuses the certificate says so after the handshake, before its hello.
        if layer is not None:
            check_refusal(address, received)
    except RemoteProtocolError as fault:
        await anyio.aclose_forcefully(stream)
        raise tls_failed(address, fault) from fault
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return b""
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return received


def _reason(error: BaseException) -> str:
    """Returns the reason why a connection could not be made. AnyIO hides it in the cause of its own error."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    return str(cause)


def raw_socket_of(stream: anyio.abc.SocketStream) -> socket.socket | None:
    """Returns the socket to which bytes can be written directly; None under asyncio."""
    # Under asyncio the socket is wrapped, and its transport perhaps still holds earlier bytes. Bytes written to the
    # socket directly would overtake them.
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    return raw if isinstance(raw, socket.socket) else None
