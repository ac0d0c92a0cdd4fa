"""RequestMemory: counts the bytes that the node holds for one HTTP request, before they are made.
They count for the connection's identity (else its host), for the caller if a token proves another one, and for the
node (`ockam.quotas`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ockam.quotas.memory import Holdings, PeerMemory
from ockam.quotas.usage import Usage, Usages
from ockam.transport.connection_usage import waits_of

READINGS_SHARE = 4
"""The pages that are read at one moment take at most the fraction 1/READINGS_SHARE of the memory for all peers."""


class Readings:
    """Lets requests read their pages in turn, so that together they stay below the share of the memory.
    Invariant: `size_bytes` is at most the share, or there is one reading."""

    def __init__(self, memory: PeerMemory) -> None:
        self._memory = memory
        self._turn = trio.StrictFIFOLock()
        self._ended = trio.Event()
        self.size_bytes = 0

    async def begin(self, size_bytes: int) -> None:
        async with self._turn:
            while self.size_bytes and self.size_bytes + size_bytes > self._memory.bytes_max // READINGS_SHARE:
                self._ended = trio.Event()
                await self._ended.wait()
            self.size_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        self.size_bytes -= size_bytes
        self._ended.set()


class RequestMemory:
    """The bytes that the node holds for one request: its body, the data for the answer, and the part being sent.
    Invariant: each of `_counted` and the holdings of the connection count the sum of these three."""

    def __init__(self, usages: Usages, holdings: Holdings, key: str, readings: Readings, page_bytes: int) -> None:
        """holdings: of the connection. key: its party (`party_key`). page_bytes: the usual size of a page."""
        self._readings = readings
        self.page_bytes = page_bytes
        self._usages = usages
        self._holdings = holdings
        self._keys = [key]
        self._counted: list[Usage] = []
        self._total_bytes = 0
        self.body_bytes = self.made_bytes = self.sent_bytes = 0

    def __enter__(self) -> RequestMemory:
        self._holdings.watch(self, self._note_end)
        return self

    def __exit__(self, *exception: object) -> None:
        self.note(body_bytes=0, made_bytes=0, sent_bytes=0)
        self._holdings.unwatch(self)

    def _note_end(self, has_ended: bool) -> None:
        # A connection that is closed to free memory frees it at once. Else all the others would be closed, too.
        if has_ended:
            self._holdings.note_waiting(-self.body_bytes)

    def count_for(self, key: str) -> None:
        if key not in self._keys:
            self._count(0)
            self._keys.append(key)
            self.note()

    async def wait_room(self) -> None:
        """Waits while an identity has more bytes than it may hold. The request holds nothing that others wait for."""
        while (over := self._find_over()) is not None:
            await waits_of(over).wait_room()

    @asynccontextmanager
    async def making(self, size_bytes: int) -> AsyncIterator[None]:
        """Waits for room for the bytes that the block makes, and counts them until `note` gets their number."""
        self.note(made_bytes=0)
        while True:
            await self.wait_room()
            await self._readings.begin(size_bytes)
            # While this request waited for its turn, its identity may have got more than it may hold.
            if self._find_over() is None:
                break
            self._readings.end(size_bytes)
        try:
            self.note(made_bytes=size_bytes)
            yield
        finally:
            self._readings.end(size_bytes)

    def note(
        self, *, body_bytes: int | None = None, made_bytes: int | None = None, sent_bytes: int | None = None
    ) -> None:
        """Sets the numbers of held bytes from now on. None: that number stays."""
        before_bytes = self.body_bytes
        self.body_bytes = self.body_bytes if body_bytes is None else body_bytes
        self.made_bytes = self.made_bytes if made_bytes is None else made_bytes
        self.sent_bytes = self.sent_bytes if sent_bytes is None else sent_bytes
        self._count(self.body_bytes + self.made_bytes + self.sent_bytes)
        # Last, because this may end the connections that hold most, even this one.
        self._holdings.note_waiting(0 if self._holdings.has_ended else self.body_bytes - before_bytes)
        self._holdings.note(0, self.made_bytes + self.sent_bytes)

    def _count(self, total_bytes: int) -> None:
        # An identity that uses nothing may be forgotten, so it is looked up when something is counted again.
        if not self._total_bytes:
            self._counted = self._find()
        for usage in self._counted:
            usage.hold(total_bytes - self._total_bytes)
        self._total_bytes = total_bytes

    def _find_over(self) -> Usage | None:
        return next((each for each in self._find() if each.counts_bytes and each.is_over), None)

    def _find(self) -> list[Usage]:
        return [self._usages.get(key, trio.current_time()) for key in self._keys]
