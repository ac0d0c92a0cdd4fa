"""What is at the other end: told from the first bytes that came, and found out by asking as other protocols do.

A server that is no stream node mostly waits for the rest of what it takes for a request of its own, and says nothing.
So the address is called once more, by `identify`, with requests that such servers answer. Only what answers is named:
silence proves nothing, since a node that stands still is silent too.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from typing import TYPE_CHECKING

from ockam.address import split_host_port
from ockam.wire import Wire
from stream_client.errors import ClientError, NodeUnreachable

if TYPE_CHECKING:
    from stream_client.core.client_core import ClientCore

PROBE_AFTER_S = 0.7
"""A connection that has brought nothing for so long, or ended without a byte, is looked into; nodes greet at once."""
PROBE_S = 0.5
"""How long each request of `identify` waits for an answer; all of it takes less than two seconds."""
SHOWN_BYTES = 16
"""Of an answer that nothing here knows."""

SIGNS: tuple[tuple[bytes, str], ...] = (
    (rb"HTTP/\d", "it answered HTTP"),
    (rb"-[A-Z]+ |\+PONG", "it answered as Redis does"),
    (rb"SSH-", "it is an SSH server"),
    (rb"[\x14-\x17]\x03[\x00-\x04]", "it speaks TLS"),
    (rb"\x00\x00[\x00-\xff]\x04\x00", "it speaks HTTP/2, as gRPC servers do"),
    (rb"INFO \{", "it is a NATS server"),
    (rb"AMQP", "it speaks AMQP"),
    (rb"[\x00-\xff]{3}\x00\x0a\d", "it is a MySQL server"),
    (rb"220[ -]", "it is a mail or FTP server"),
    (rb"\+OK|\* OK", "it is a mail server"),
)
"""How the first bytes of other servers begin, and what to call them."""

HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
"""HTTP servers answer it, and so does Redis, as a command that it knows with the wrong arguments."""


def describe(first: bytes) -> str:
    """What sends these first bytes, which no node sends."""
    found = find_sign(first)
    if found is not None:
        return found
    return f"what it sends, {first[:SHOWN_BYTES]!r}, is not what a node sends"


def find_sign(first: bytes) -> str | None:
    """The server whose first bytes these are; None where nothing here knows it."""
    return next((name for sign, name in SIGNS if re.match(sign, first)), None)


def opens_as_node(first: bytes, wire: Wire) -> bool:
    """Whether a node of that framing can send these first bytes, of which there is one at least."""
    if wire.hello:
        return first.startswith(wire.hello)
    # A legacy frame is a u16 length and a version, which is 1 or 2; one without content has no version.
    return len(first) < 3 or first[:2] == b"\0\0" or first[2] in (1, 2)


def no_contact(address: str, core: ClientCore) -> ClientError:
    """Why the service at that address was not reached, as far as can be told from what has come."""
    if core.service_route.trouble is not None:
        return core.service_route.trouble
    if core.connection.received_bytes:
        return NodeUnreachable(
            f"{address} greets as a node does, and no {core.service_name!r} answers there; real Ockam services since "
            "2021 are found with --service stream"
        )
    if core.statistics().connections > 1:
        return NodeUnreachable(
            f"{address} takes connections and ends them without a word: it is no stream node, it has too many "
            "connections, or it is an Ockam service of before 2024 (--framing legacy)"
        )
    if core.connection.wire is not None and not core.connection.wire.hello:
        return NodeUnreachable(
            f"{address} sends nothing: no {core.service_name!r} answers there in the legacy framing; real Ockam "
            "services since 2021 are found with --service stream"
        )
    return NodeUnreachable(
        f"{address} takes connections and sends nothing: it is no stream node, it stands still, or it is an Ockam "
        "service of before 2024 (--framing legacy)"
    )


def identify(address: str) -> str | None:
    """Call `host:port` as a client of other protocols does; what answers there, None where nothing that is known does.

    It blocks for at most two times PROBE_S, and raises nothing.
    """
    for request in (HTTP_REQUEST, _client_hello()):
        found = find_sign(_ask(address, request))
        if found is not None:
            return found
    return None


def _ask(address: str, request: bytes) -> bytes:
    """The first bytes that come on a new connection after this request; none where none come in time."""
    give_up_s = time.monotonic() + PROBE_S
    answer = b""
    try:
        with socket.create_connection(split_host_port(address), PROBE_S) as connection:
            connection.sendall(request)
            # A few bytes can come in several pieces, and no sign is longer than this.
            while len(answer) < SHOWN_BYTES and (left_s := give_up_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                piece = connection.recv(SHOWN_BYTES)
                if not piece:
                    break
                answer += piece
    except OSError:
        pass  # Nobody answers, or not in time, or no more: what has come says what there is to say.
    return answer


def _client_hello() -> bytes:
    """How a TLS client begins."""
    import ssl

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):  # It has written its hello, and would read the server's.
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()
