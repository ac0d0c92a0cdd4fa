"""ReadingLoop: reads the partitions of a consumer and saves the consumer's positions. All kinds of consumers use it.

The consumer chooses the partitions. The loop returns their messages page by page. A message counts as processed when
the program asks for the next message. The position of a partition is the next index to read, as in the real Ockam
clients. Saves are sent in order, and never cover an unprocessed message: after a crash, the consumer gets the messages
after the last save again.

A position belongs to one incarnation of the stream. If the stream is made again, or somebody sets the position while
the consumer runs, the loop continues elsewhere and reports an event (`StreamRemade`, `PositionReset`). With a node that
does not tell incarnations apart, only a position beyond the stream's end shows that it was made again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from stream_client.consume.reader import LONG_POLL_S
from stream_client.consume.readings import PartitionReading, ReadPartitions
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import RequestTimeout, StreamRemade
from stream_client.positions import Positions, resume
from stream_client.session import ClientSession


class ReadingLoop(ReadPartitions):
    """Reads the partitions of one consumer, and records the consumer's position in each partition."""

    _session: ClientSession
    _positions: Positions

    async def add(self, handles: Sequence[PartitionHandle]) -> None:
        """Begins to read those of these partitions that are not being read yet, each at its saved position."""
        new = [handle for handle in handles if handle.partition not in self.readings]
        if not new:
            return
        partitions = [handle.partition for handle in new]
        marks = await resume(self._positions, self._stream_name, partitions, self._note_reset)
        self._begin_reading(new, marks)

    # blocking only: def send_lagging(self) -> None:
    # blocking only:     """Sends the saves and lease renewals that are due, also between two messages of one page."""
    # blocking only:     self._session.shell.send_lagging()

    async def next_reading(self, stop_at_end: bool) -> PartitionReading | None:
        """Waits until a partition has messages, and returns its PartitionReading; None after `wake`. With
        `stop_at_end`, also returns None at the end of all partitions, and raises RequestTimeout if no answer comes."""
        if self.current is not None and self.current.has_messages:
            return self.current
        # Partitions may have been added, or positions set, while the program processed the last page.
        await self._follow_changes()
        self._ask(stop_at_end)
        # An endless loop may wait for ever. A loop that stops at the end must not hang if no answer comes.
        patience_s = self._session.answer_timeout_s if stop_at_end else None
        give_up_s = math.inf if patience_s is None else self._session.shell.now_s() + patience_s + LONG_POLL_S
        while not (stop_at_end and self.has_ended()):
            # A shared consumer must give up or take partitions now, and calls this method again.
            if self.woken:
                self.woken = False
                return None
            # The wait ends when a save is due. Otherwise a quiet stream would delay the save until the next message.
            wait_s = min(self._next_due_s(), give_up_s) - self._session.shell.now_s()
            if wait_s > 0:
                await self._session.shell.wait(self._merge.arrival(), wait_s)
            now_s = self._session.shell.now_s()
            self._do_due(now_s)
            # A partition that changed gets a new reader. A page of another partition waits in the queue meanwhile.
            if self._resets or self._added:
                await self._follow_changes()
                self._ask(stop_at_end)
            elif (reader := self._merge.next_nowait()) is None:
                if now_s >= give_up_s:
                    raise RequestTimeout(f"{self._session.address} has not answered a pull in time")
            elif await self._turn_page(self._by_reader[reader], stop_at_end):
                return self.current
        # All messages have been read and processed, so this is the last chance to save the final position.
        await self.save()
        return None

    async def save(self, partitions: Collection[int] | None = None) -> None:
        """Saves the changed positions of these partitions (None: all). Returns when they are safely stored."""
        moved = self._moved(partitions, lambda reading: reading.kept_index)
        if moved:
            await self._positions.save(self._stream_name, moved)
        self._kept(moved)

    async def _turn_page(self, reading: PartitionReading, stop_at_end: bool) -> bool:
        """Makes the arrived page the current one of its partition, and requests the next page. Returns whether the
        arrived page has messages."""
        page = reading.reader.take()
        # The position means nothing in a stream that was made again, and neither does the page that begins at it.
        if page.created_us is not None and not reading.mark.is_of(page.created_us):
            await self._begin_anew(reading, page.created_us)
            self._ask(stop_at_end)
            return False
        self._take_page(reading, page)
        # The next page travels while the program processes this page. Without this, every page would cost a round trip.
        if not (stop_at_end and reading.ended):
            reading.reader.ask()
            await self._session.shell.yield_control()
        return bool(page.messages)

    async def _begin_anew(self, reading: PartitionReading, created_us: int) -> None:
        """Reads the stream that was created at `created_us` from its beginning: the position is an earlier stream's."""
        before, index = reading.next_index, 0
        # The position of the new stream is saved first. Otherwise the saves that follow would be refused, because their
        # index is lower. If somebody else has saved a position of the new stream, the answer has its index. If the save
        # is refused, `_follow_changes` loads the position.
        if hasattr(self._positions, "begin"):
            index = (await self._positions.begin(self._stream_name, reading.partition, created_us)).index
        # A shared consumer may have lost the partition during the wait.
        if self.readings.get(reading.partition) is not reading:
            return
        reading.mark.created_us = created_us
        self._go_to(reading, index)
        self._tell(StreamRemade(self._stream_name, reading.partition, before))

    async def _follow_changes(self) -> None:
        """Begins to read added partitions, and goes on at the positions that somebody else has set."""
        # The list is cut only after the positions were loaded. After an error, the next call tries again.
        added = len(self._added)
        await self.add(self._added[:added])
        del self._added[:added]
        partitions = sorted(self._resets & self.readings.keys())
        if not partitions:
            return
        # The new positions are loaded together, in one round trip.
        marks = await resume(self._positions, self._stream_name, partitions, self._note_reset)
        self._go_on(partitions, marks)
