"""Opens the connections of the blocking client: TCP, the TLS handshake, and the framing. It exchanges no messages."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from ockam.actors.address import split_host_port
from ockam.errors import RemoteProtocolError
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client.errors import NodeUnreachable, silent, unanswered
from stream_client.shell.defaults import CONNECT_TIMEOUT_S, READ_BYTES_MAX, Framing
from stream_client.shell.tls import check_refusal, ended_in_handshake, new_layer, silent_over_tls, tls_failed
from stream_client.shell.token import TokenExchange

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.tls_layer import TlsLayer
    from ockam.identity.token import Token


class DialledSocket(NamedTuple):
    """A new connection, its framing and its TLS.

    connection: a socket that does not block.
    greeted: whether the hello, the byte before the first frame, has been sent over it.
    received: decrypted bytes that have been received over it. Without TLS and without a token they stay in the socket.
    tls: a layer whose handshake is complete; None: the connection does not use TLS.
    """

    connection: socket.socket
    wire: Wire
    greeted: bool = False
    received: bytes = b""
    tls: TlsLayer | None = None


def dial(
    address: str,
    framing: Framing,
    auto_wait_s: float,
    tls: Tls | None,
    token: Token | None = None,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> DialledSocket:
    """Opens a new connection to the node. With a token, also proves the client's name to the node. `async_dial.dial`
    explains the parameters and the errors."""
    dialled = _dial(address, framing, auto_wait_s, tls, timeout_s, greets=token is not None)
    if token is None:
        return dialled
    try:
        return _authenticate(address, dialled, token, timeout_s)
    except BaseException:
        dialled.connection.close()
        raise


def _dial(
    address: str, framing: Framing, auto_wait_s: float, tls: Tls | None, timeout_s: float, *, greets: bool
) -> DialledSocket:
    connection, layer = _call(address, tls, timeout_s)
    # A node refuses the client's certificate only after the handshake, so without a wait for its hello a refused
    # connection would look open. And a token must not be sent to a server of another kind.
    if framing == "legacy" or (framing == "head" and layer is None and not greets):
        return DialledSocket(connection, HEAD if framing == "head" else LEGACY, tls=layer)
    if layer is None:
        if _greet(connection, auto_wait_s if framing == "auto" else timeout_s):
            return DialledSocket(connection, HEAD, greeted=True)
    else:
        hello = _greet_over_tls(address, connection, layer, auto_wait_s if framing == "auto" else timeout_s)
        if hello:
            return DialledSocket(connection, HEAD, True, hello, layer)
    # A legacy node takes our hello for the beginning of a frame and waits for the rest, so this connection is useless.
    connection.close()
    if framing == "head":
        raise silent(address) if layer is None else silent_over_tls(address)
    connection, layer = _call(address, tls, timeout_s)
    return DialledSocket(connection, LEGACY, tls=layer)


def _authenticate(address: str, dialled: DialledSocket, token: Token, timeout_s: float) -> DialledSocket:
    connection, wire, _, received, layer = dialled
    give_up_s = time.monotonic() + timeout_s
    try:
        # Without TLS, the hello of the node has come and is still in the socket.
        if wire.hello and layer is None:
            received = connection.recv(len(wire.hello))
        host = connection.getpeername()[0]
    except OSError as error:
        raise NodeUnreachable(f"{address} ended the connection before the token was sent") from error
    exchange = TokenExchange(address, token, wire, received, host=host, is_encrypted=layer is not None)
    if not exchange.is_node:
        return dialled._replace(received=received)
    request = exchange.request()
    try:
        connection.settimeout(timeout_s)
        connection.sendall(request if layer is None else layer.encrypt(request))
        while not exchange.is_done:
            connection.settimeout(max(0.001, give_up_s - time.monotonic()))
            data = connection.recv(READ_BYTES_MAX)
            if not data:
                raise exchange.silence()
            exchange.receive(data if layer is None else layer.decrypt(data))
        connection.setblocking(False)
    except OSError as error:
        raise exchange.silence() from error
    except RemoteProtocolError as fault:
        raise tls_failed(address, fault) from fault
    return DialledSocket(connection, wire, True, exchange.first_bytes(), layer)


def _call(address: str, tls: Tls | None, timeout_s: float) -> tuple[socket.socket, TlsLayer | None]:
    """Returns a new socket that is connected to the node, and its TLS. Raises NodeUnreachable."""
    layer = None if tls is None else new_layer(tls, address)
    give_up_s = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection(split_host_port(address), timeout_s)
    except TimeoutError as error:
        raise unanswered(address, timeout_s) from error
    except OSError as error:
        raise NodeUnreachable(f"cannot reach a node at {address}: {error}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if layer is not None:
            # The handshake has the time that connecting has left.
            _shake_hands(address, connection, layer, give_up_s)
        connection.setblocking(False)
    except OSError as error:
        connection.close()
        raise NodeUnreachable(f"cannot reach a node at {address}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection, layer


def _shake_hands(address: str, connection: socket.socket, layer: TlsLayer, give_up_s: float) -> None:
    try:
        reply = layer.handshake()
        while True:
            if reply:
                connection.sendall(reply)
            if layer.is_open:
                return
            connection.settimeout(max(0.001, give_up_s - time.monotonic()))
            data = connection.recv(READ_BYTES_MAX)
            if not data:
                raise ended_in_handshake(address)
            reply = layer.handshake(data)
    except ConnectionResetError as error:
        raise ended_in_handshake(address) from error
    except RemoteProtocolError as fault:
        # The alert tells the node why this client ends the connection.
        with contextlib.suppress(OSError):
            connection.sendall(getattr(fault, "alert", b""))
        raise tls_failed(address, fault) from fault


def _greet(connection: socket.socket, wait_s: float) -> bool:
    """Sends the hello, the first byte of the framing "head" (Ockam since June 2024). Returns whether an answer arrives
    in time. Its bytes are not read from the socket."""
    try:
        connection.send(HEAD.hello)
        readable = bool(select.select([connection], [], [], wait_s)[0])
        return readable and bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _greet_over_tls(address: str, connection: socket.socket, layer: TlsLayer, wait_s: float) -> bytes:
    """Sends the hello over TLS. Returns the decrypted bytes that arrive in time; empty if none do. Raises TlsFailed if
    the node refuses this client's certificate."""
    give_up_s = time.monotonic() + wait_s
    received = b""
    try:
        connection.setblocking(True)
        connection.settimeout(wait_s)
        connection.sendall(layer.encrypt(HEAD.hello))
        # A record of TLS can come in pieces, or carry no data of the node.
        while not received and not layer.ended:
            connection.settimeout(max(0.001, give_up_s - time.monotonic()))
            data = connection.recv(READ_BYTES_MAX)
            if not data:
                break
            received = layer.decrypt(data)
        connection.setblocking(False)
        # A node that refuses the certificate says so after the handshake, before its hello.
        check_refusal(address, received)
    except OSError:
        return b""
    except RemoteProtocolError as fault:
        connection.close()
        raise tls_failed(address, fault) from fault
    except BaseException:
        connection.close()
        raise
    return received
