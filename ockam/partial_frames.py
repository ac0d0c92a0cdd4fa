"""How much memory the unfinished frames of all connections may take together. It reads no sockets and keeps no time.

A frame's length comes first and its bytes may then stay away, so each connection can hold a frame less one byte. Above
the bound a connection whose frame is large is not read on; so that those frames do not wait for each other for ever,
one connection at a time has the turn to finish its frame.
"""

from __future__ import annotations

import trio

PARTIAL_BYTES_MAX = 256 * 1024 * 1024
"""Unfinished frames of one node: sixteen of the largest."""
PARTIAL_FREE_BYTES = 64 * 1024
"""A connection with no more than this of a frame is always read, so that large frames never hold up small ones."""


class PartialFrames:
    """The sum over all connections, and who may read on above the bound.

    Invariant: the sum passes `bytes_max` by at most one read of each connection, the free part of each, and the frame
    of the one that has the turn.
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
        """What `holder` has of an unfinished frame has changed."""
        self._size_bytes += now_bytes - before_bytes
        if self._turn is holder and now_bytes <= PARTIAL_FREE_BYTES:
            self._turn = None
        if self._room is not None and (self._turn is None or self._size_bytes < self._bytes_max):
            self._room.set()
            self._room = None

    async def wait_turn(self, holder: object) -> None:
        """Until there is room, or it is this holder's turn to go on without."""
        while self._size_bytes >= self._bytes_max and self._turn is not holder:
            if self._turn is None:
                self._turn = holder
                return
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
