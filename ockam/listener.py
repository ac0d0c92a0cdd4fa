"""Accepts TCP connections, limits their number, and chooses the silent connection to close when there is no room.

`accept_all` accepts connections from a listening socket and passes each to its caller. It does not serve them.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from itertools import islice
from typing import Protocol

import structlog
import trio

OPEN_FILES_RESERVE = 64
"""This many open files are reserved for the database, the logs and everything else that is not a connection."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The errors of accept(2) which mean that the process or the computer has no room for another connection."""
NO_ROOM_PAUSE_S = 0.1
"""The pause after such an error, in seconds. The kernel offers the same connection again at once. Without a pause, the
loop would spin and write a log line each time."""
CANDIDATES_MAX = 32
"""To make room for a new connection, this many of the oldest silent connections are checked. Those with unread bytes
have just sent something and are skipped. If all of them have, the new connection is refused."""

logger = structlog.get_logger(__name__)


async def accept_all(
    listener: trio.SocketListener, take: Callable[[trio.SocketStream], None], no_room: Callable[[], None]
) -> None:
    """Calls `take` with every new connection, one in each turn of the event loop, and `no_room` after an error of
    NO_ROOM.

    `trio.serve_listeners` has no such callback as `no_room`, so its caller could not close a silent connection to make
    room. Runs until it is cancelled. Raises OSError if the listener itself fails.
    """
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


def connections_that_fit(connections_max: int) -> int:
    """Returns how many connections this process can have open: at most `connections_max`, and at least 1.

    First raises the soft limit of open files to the hard limit. Otherwise the kernel would complete connections above
    the soft limit that the process could never accept.
    """
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


class SilentConnection(Protocol):
    """The interface of a connection that has sent no message yet."""

    def has_unread(self) -> bool:
        """Whether bytes of the peer wait to be read."""
        ...

    def close(self, reason: str) -> None: ...


class SilentConnections:
    """The connections that have sent no message yet, oldest first.

    A real client may connect, send its first message much later, and fail if it was disconnected meanwhile. So silent
    connections are kept as long as possible. If there is no room for a new connection, the oldest silent one is closed.

    Invariant: a connection is in here from its beginning to its first message or its end, whichever comes first.
    """

    def __init__(self) -> None:
        self._silent: dict[SilentConnection, None] = {}

    def __len__(self) -> int:
        return len(self._silent)

    def add(self, connection: SilentConnection) -> None:
        self._silent[connection] = None

    def discard(self, connection: SilentConnection) -> None:
        """Removes a connection that has sent a message or has ended. Safe to repeat."""
        self._silent.pop(connection, None)

    def close_oldest(self) -> SilentConnection | None:
        """Closes and returns the oldest silent connection without unread bytes. Returns None if there is none."""
        for connection in list(islice(self._silent, CANDIDATES_MAX)):
            if not connection.has_unread():
                self.discard(connection)
                connection.close("gave_way")
                return connection
        return None
