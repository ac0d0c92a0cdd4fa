"""Accepting connections: how many fit into the process, and which silent one is closed when there is no room.

`accept_all` takes connections from a listening socket and hands each to its caller. It does not serve them.
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
"""Open files that are left for the database, its readers, the logs and whatever else a node opens."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The errors of accept(2) that mean: the process or the machine has no room for another connection."""
NO_ROOM_PAUSE_S = 0.1
"""The pause after such an error. The waiting connection is offered again at once, so that without a pause the loop
would spin and write a log line for each attempt."""
CANDIDATES_MAX = 32
"""How many silent connections are looked at to free one place. Connections with unread bytes have just spoken and are
skipped; when the oldest ones have all just spoken, the newcomer is refused."""

logger = structlog.get_logger(__name__)


async def accept_all(
    listener: trio.SocketListener, take: Callable[[trio.SocketStream], None], no_room: Callable[[], None]
) -> None:
    """Call `take` with every connection, one in each turn of the event loop, and `no_room` after an error of `NO_ROOM`.

    `trio.serve_listeners` does the same, but does not tell its caller that there is no room, and the caller could then
    not close a silent connection to make some. Runs until it is cancelled. Raises OSError when the listener itself
    fails.
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
    """The number of connections that this process can have open: `connections_max`, or fewer; at least 1.

    Raises the soft limit of open files to the hard limit first. Without that the kernel would accept connections above
    the soft limit, and nobody would ever answer them.
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
    """A connection that has sent no message yet."""

    def has_unread(self) -> bool:
        """Whether bytes of the peer wait to be read."""
        ...

    def close(self, reason: str) -> None: ...


class SilentConnections:
    """The connections that have sent no message yet, oldest first.

    Real clients may connect and speak much later, and break when they are cut off, so silence is no fault. But when
    there is no room for a new connection, the one that has been silent longest is closed for it.
    Invariant: a connection is in here from its beginning to its first message or its end, whichever comes first.
    """

    def __init__(self) -> None:
        self._silent: dict[SilentConnection, None] = {}

    def __len__(self) -> int:
        return len(self._silent)

    def add(self, connection: SilentConnection) -> None:
        self._silent[connection] = None

    def discard(self, connection: SilentConnection) -> None:
        """Forget a connection that has sent a message or has ended. Safe to repeat."""
        self._silent.pop(connection, None)

    def close_oldest(self) -> SilentConnection | None:
        """Close the oldest connection without unread bytes and return it; None if there is none."""
        for connection in list(islice(self._silent, CANDIDATES_MAX)):
            if not connection.has_unread():
                self.discard(connection)
                connection.close("gave_way")
                return connection
        return None
