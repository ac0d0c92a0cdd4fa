"""PartialFrames: limits the memory of the unfinished frames of all connections together.

Above the limit, one connection with a large frame is read at a time; if none were, all would wait forever."""

from __future__ import annotations

import trio

PARTIAL_BYTES_MAX = 256 * 1024 * 1024
"""The limit for the unfinished frames of one node: sixteen frames of the largest size."""
PARTIAL_FREE_BYTES = 64 * 1024
"""A connection with at most this many bytes of an unfinished frame is always read, so small frames are not delayed."""


class PartialFrames:
    """The total size of all unfinished frames, and the one connection that may be read above the limit.

    Invariant: the total size exceeds `bytes_max` by at most one read and PARTIAL_FREE_BYTES for each connection, plus
    the frame of the connection that may be read above the limit."""

    def __init__(self, bytes_max: int = PARTIAL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0
        self._turn: object | None = None
        self._room = trio.lowlevel.ParkingLot()

    def note(self, holder: object, before_bytes: int, now_bytes: int) -> None:
        self.size_bytes += now_bytes - before_bytes
        # The large frame is complete, so another connection may be read.
        if self._turn is holder and now_bytes <= PARTIAL_FREE_BYTES:
            self._turn = None
        if self._room and (self._turn is None or self.size_bytes < self._bytes_max):
            self._room.unpark_all()

    async def wait_turn(self, holder: object) -> None:
        """Waits until the connection `holder` may be read: below the limit each may, above the limit one at a time."""
        while self.size_bytes >= self._bytes_max and self._turn is not holder:
            # No other connection with a large frame is read, so this one may complete its frame.
            if self._turn is None:
                self._turn = holder
                return
            await self._room.park()
