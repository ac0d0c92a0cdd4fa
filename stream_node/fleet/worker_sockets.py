"""The listening sockets of the workers of one node: several at one address, and one for each worker alone."""

from __future__ import annotations

import socket
from contextlib import ExitStack

BACKLOG = 1_024


def resolved(host: str, port: int) -> list[tuple[str, int]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((str(address[0]), port) for *_, address in found))


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """Returns several sockets that listen at one address, among which the kernel shares the connections (SO_REUSEPORT).

    SO_REUSEPORT alone would let a second node of the same user in. So the first socket begins to listen without it, and
    the kernel refuses that if any socket listens there: one of a single process, of another supervisor, or at a
    wildcard address. Only then the first socket is opened to the further ones. Another supervisor begins without
    SO_REUSEPORT too, so it is refused from then on until the last of these sockets is closed. Port 0 picks a free port.
    Raises OSError.
    """
    with ExitStack() as stack:
        first = stack.enter_context(listen_alone(host, port))
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = first.getsockname()[1]
        further = [stack.enter_context(_listen(host, port, joins=True)) for _ in range(count - 1)]
        stack.pop_all()
    return [first, *further]


def listen_alone(host: str, port: int) -> socket.socket:
    """Returns a socket that listens where no other socket does. Port 0 picks a free port. Raises OSError."""
    return _listen(host, port, joins=False)


def _listen(host: str, port: int, *, joins: bool) -> socket.socket:
    """joins: whether other sockets of this user that have SO_REUSEPORT may listen at the address, too."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if joins:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if listening.family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
