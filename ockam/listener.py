"""Takes connections from a listening socket for as long as the process lasts. The caller decides about each of them.

`trio.serve_listeners` does the same but for one thing: where the process has no room for another connection, the caller
is told here and can make some.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import structlog
import trio

NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""What accept(2) says where the process or the machine has no room for another connection."""
NO_ROOM_PAUSE_S = 0.1
"""Until the next attempt, and between two log lines about it, since who waits to be accepted comes again at once."""

logger = structlog.get_logger(__name__)


async def accept_all(
    listener: trio.SocketListener, take: Callable[[trio.SocketStream], None], no_room: Callable[[], None]
) -> None:
    """Hand every connection to `take`, one in each turn of the event loop; after an error of `NO_ROOM` call `no_room`.

    Runs until it is cancelled. Raises OSError where the listener itself fails.
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
