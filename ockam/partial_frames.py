"""The bound on the memory that the unfinished frames of all connections take together. It reads no sockets.

The length of a frame comes first, and the rest of the frame may then stay away, so each connection can make us hold
nearly a whole frame. Above the bound, connections with large unfinished frames are not read any further. One connection
at a time may read on all the same, or those frames would wait for each other for ever.
"""

from __future__ import annotations

import trio

PARTIAL_BYTES_MAX = 256 * 1024 * 1024
"""The bound for one node: sixteen frames of the largest size."""
PARTIAL_FREE_BYTES = 64 * 1024
"""A connection that holds no more than this of a frame is always read: large frames never hold up small ones."""


class PartialFrames:
    """The size of all unfinished frames, and the connection that may read on above the bound.

    Invariant: the sum passes `bytes_max` by at most one read and PARTIAL_FREE_BYTES for each connection, and the frame
    of the connection that has the turn.
    """

    def __init__(self, bytes_max: int = PARTIAL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._turn: object | None = None
        self._room: trio.Event | None = None

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def note(self, holder: object, before_bytes: int, now_bytes: int) -> None:
        """The connection `holder` now holds this much of an unfinished frame, and held that much before."""
        self._size_bytes += now_bytes - before_bytes
        if self._turn is holder and now_bytes <= PARTIAL_FREE_BYTES:
            self._turn = None
        if self._room is not None and (self._turn is None or self._size_bytes < self._bytes_max):
            self._room.set()
            self._room = None

    async def wait_turn(self, holder: object) -> None:
        """Return when there is room below the bound, or when `holder` has the turn."""
        while self._size_bytes >= self._bytes_max and self._turn is not holder:
            if self._turn is None:
                self._turn = holder
                return
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
