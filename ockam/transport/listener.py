"""Opens listeners, accepts TCP connections, limits their number, and closes a silent one if a new one has no room.

A connection is silent until it has sent its first message. This module does not serve connections."""

from __future__ import annotations

import errno
import fcntl
import resource
import socket
import termios
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

import structlog
import trio

from ockam.actors.address import split_host_port

OPEN_FILES_RESERVE = 64
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
NO_ROOM_PAUSE_S = 0.1
"""The pause after an error of `NO_ROOM`. The kernel offers the same connection again at once, without end."""
ACCEPTS_MAX = 16
"""The most connections that a listener accepts in one turn of the event loop. Each takes some 0.1 ms."""
CANDIDATES_MAX = 32
"""The most silent connections that are checked to make room, oldest first. One with unread bytes is not closed: its
peer has just sent something."""

logger = structlog.get_logger(__name__)


async def open_listeners(addresses: Iterable[str]) -> list[trio.SocketListener]:
    """Opens the sockets of all `host:port` addresses. Raises OSError if one cannot be opened; then none stays open."""
    listeners: list[trio.SocketListener] = []
    try:
        for address in addresses:
            host, port = split_host_port(address)
            listeners += await trio.open_tcp_listeners(port, host=host)
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


async def accept_all(
    listener: trio.SocketListener, take: Callable[[trio.SocketStream], None], no_room: Callable[[], None]
) -> None:
    """Accepts connections until it is cancelled. take: called with each. no_room: called after each error of NO_ROOM,
    to close a silent connection. Raises OSError if the listener itself fails."""
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                logger.error("accept_failed", reason=f"{errno.errorcode[error.errno]} ({error.strerror})")
                no_room()
                await trio.sleep(NO_ROOM_PAUSE_S)
            else:
                take(stream)
                for each in _accept_ready(listener):
                    take(each)


def _accept_ready(listener: trio.SocketListener) -> Iterator[trio.SocketStream]:
    """Accepts some of the connections that wait. trio accepts one in each turn of the event loop, and while the node is
    busy a turn is long: thousands of connections that come at one moment would wait for seconds."""
    # The descriptor is not copied: that would fail when the process has no more descriptors.
    ready = socket.socket(fileno=listener.socket.fileno())
    try:
        for _ in range(ACCEPTS_MAX - 1):
            # No connection waits any more, or there is an error, which the next `accept` of trio meets too.
            try:
                accepted, _ = ready.accept()
            except OSError:
                return
            accepted.setblocking(False)
            yield trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
    finally:
        # The listener goes on with its descriptor.
        ready.detach()


def connections_that_fit(connections_max: int) -> int:
    """Raises the limit of open files of this process as far as it may. Returns how many connections fit: at most
    `connections_max`, and at least 1."""
    # Without a higher soft limit, the kernel would complete connections above it that the process could never accept.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            logger.warning("open_files_not_raised", soft=soft, hard=hard, reason=str(error))
        else:
            logger.info("open_files_raised", before=soft, now=hard)
            soft = hard
    if soft == resource.RLIM_INFINITY or connections_max <= soft - OPEN_FILES_RESERVE:
        return connections_max
    fit = max(1, soft - OPEN_FILES_RESERVE)
    logger.warning("connections_bounded", wanted=connections_max, most=fit, open_files=soft)
    return fit


def has_unread(descriptor: int) -> bool:
    return descriptor >= 0 and any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))


class SilentConnection(Protocol):
    def has_unread(self) -> bool: ...

    def close(self, reason: str) -> None: ...


S = TypeVar("S", bound=SilentConnection)


def close_oldest(silent: dict[S, None]) -> S | None:
    """Closes, removes and returns the oldest silent connection without unread bytes, or None. CANDIDATES_MAX are
    checked. silent: the connections that have sent no message yet, oldest first."""
    for connection in list(islice(silent, CANDIDATES_MAX)):
        # Unread bytes may be the first message of the connection.
        if not connection.has_unread():
            del silent[connection]
            connection.close("gave_way")
            return connection
    return None
