"""Finds out which kind of server is at an address where no stream node answers.

Most servers of other protocols take the hello of one byte for the beginning of a request, wait for the rest, and send
nothing. So `identify` opens new connections and sends requests of other protocols. It names only a server that answers.
Silence proves nothing, since a node that hangs is silent too.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

from ockam.actors.address import split_host_port
from stream_client.core.client_connection import SHOWN_BYTES, find_sign
from stream_client.errors import ClientError, NodeUnreachable
from stream_client.shell.in_memory import HOST

if TYPE_CHECKING:
    from stream_client.core.client_core import ClientCore

PROBE_AFTER_S = 0.7
"""The client calls `identify` when it has received nothing for this many seconds, or at once when a connection ends
without a byte. A stream node sends its first byte at once."""
PROBE_S = 0.5
"""The seconds that `identify` waits for the answer to each of its two requests."""

HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
"""A request that HTTP servers answer. Redis answers it too: with an error, since Redis reads it as a command."""


def no_contact(address: str, core: ClientCore) -> ClientError:
    """Returns the error for a service that has not answered. Its text says why, judged by the bytes received so far."""
    # A node on the route has reported the reason, which is better than a guess.
    if core.service_route.trouble is not None:
        return core.service_route.trouble
    if core.connection.received_bytes and core.connection.is_encrypted and not core.connection.has_worked:
        return core.connection.silence()
    if core.connection.received_bytes:
        return NodeUnreachable(
            f"{address} greets as a node does, and no {core.service_name!r} answers there: its database may be silent "
            "(stream-node status), and real Ockam services since 2021 are found with --service stream"
        )
    if core.statistics().connections > 1:
        return NodeUnreachable(
            f"{address} takes connections and ends them without a word: it is no stream node, it has too many "
            "connections, or it is an Ockam service of before 2024 (--framing legacy)"
        )
    # A legacy node sends no hello, so its silence proves nothing.
    if core.connection.framing is not None and not core.connection.framing.hello:
        return NodeUnreachable(
            f"{address} sends nothing: no {core.service_name!r} answers there in the legacy framing; real Ockam "
            "services since 2021 are found with --service stream"
        )
    return NodeUnreachable(
        f"{address} takes connections and sends nothing: it is no stream node, it stands still, or it is an Ockam "
        "service of before 2024 (--framing legacy)"
    )


def identify(address: str) -> str | None:
    """Returns a text that names the kind of server at `host:port`, or None if unknown. Blocks for at most two times
    PROBE_S seconds for each IP address of the host, and raises nothing."""
    if split_host_port(address)[0] == HOST:
        return None
    for request in (HTTP_REQUEST, _client_hello()):
        found = find_sign(_ask(address, request))
        if found is not None:
            return found
    return None


def _ask(address: str, request: bytes) -> bytes:
    """Sends a request over a new connection and returns the first bytes of the answer; empty if none arrive in time."""
    give_up_s = time.monotonic() + PROBE_S
    answer = b""
    try:
        with socket.create_connection(split_host_port(address), PROBE_S) as connection:
            connection.sendall(request)
            # The first bytes can come in several pieces. No server's sign is longer than this.
            while len(answer) < SHOWN_BYTES and (left_s := give_up_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                piece = connection.recv(SHOWN_BYTES)
                if not piece:
                    break
                answer += piece
    except OSError:
        pass  # There is no server, no answer in time, or no further byte: the bytes that came so far decide.
    return answer


def _client_hello() -> bytes:
    import ssl

    from ockam.identity.tls_layer import PROBE

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A slow stream node without TLS recognizes this probe by the name, and logs no warning.
    context.set_alpn_protocols([PROBE])
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(
        ssl.SSLWantReadError
    ):  # The hello is written; the handshake now wants the server's answer.
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()
