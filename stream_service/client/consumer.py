"""A consumer of one stream that resumes where it stopped. Where the position is kept is somebody else's business.

What is saved is the next index to read, as the real clients do; resuming pulls exactly that, so nothing is skipped.
A message is delivered at least once: after a crash, those behind the last save come again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import anyio

from stream_service.client.async_client import Stream
from stream_service.protocol import StreamMessage

PAGE_MESSAGES = 1_000
IDLE_DELAY_S = 0.25
"""How long to wait before asking again when there was nothing."""


class Positions(Protocol):
    """Keeps the next index to read of each stream-partition; `index_service.client.SavedIndexes` does."""

    async def get(self, stream_name: str, partition: int) -> int: ...

    async def save(self, stream_name: str, partition: int, index: int) -> None: ...


class Consumer:
    """Iterates over the messages of a stream from the saved position on.

    A message counts as processed when the next one is asked for. Positions are saved after each page, and by `save`.
    holes: how many indexes were missing between messages (retention, or deletion), since the start.
    """

    def __init__(self, stream: Stream, positions: Positions, *, page_messages: int = PAGE_MESSAGES) -> None:
        self._stream = stream
        self._positions = positions
        self._page_messages = page_messages
        self._next_index: int | None = None
        self._saved_index = -1
        self.holes = 0

    @property
    def next_index(self) -> int | None:
        """The next index to read; None before the first message is asked for."""
        return self._next_index

    async def messages(
        self, *, stop_at_end: bool = False, idle_delay_s: float = IDLE_DELAY_S
    ) -> AsyncGenerator[StreamMessage, None]:
        """Messages in order, for ever, or until the stream has no more (`stop_at_end`).

        Whoever leaves the loop early closes it: `async with contextlib.aclosing(consumer.messages()) as messages`.
        """
        if self._next_index is None:
            self._next_index = await self._positions.get(self._stream.name, self._stream.partition)
        while True:
            page = await self._stream.pull(self._next_index, self._page_messages)
            for message in page:
                if self._next_index:
                    self.holes += message.index - self._next_index
                yield message
                self._next_index = message.index + 1
            await self.save()
            if not page:
                if stop_at_end:
                    return
                await anyio.sleep(idle_delay_s)

    async def save(self) -> None:
        """Save the position now, if it has moved."""
        if self._next_index is not None and self._next_index > max(self._saved_index, 0):
            await self._positions.save(self._stream.name, self._stream.partition, self._next_index)
            self._saved_index = self._next_index
