"""ReadingLoop: reads the partitions of a consumer and saves the consumer's positions. All kinds of consumers use it.

The consumer chooses the partitions. The loop returns their messages page by page, and records which messages the
program has processed. A message counts as processed when the program asks for the next message.

The position of a partition is the next index to read, as in the real Ockam clients. A consumer resumes at the saved
position, so it skips no message. After a crash, it gets the messages after the last save again. Saves are sent in
order, and never cover an unprocessed message.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from stream_client.consume.options import ConsumerOptions
from stream_client.consume.page import Page, find_holes
from stream_client.consume.reader import LONG_POLL_S, Merge, Reader
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, RequestTimeout
from stream_client.positions import Positions
from stream_client.session import Session
from stream_service.extensions import FromIndex, RichMessage


class PartitionReading:
    """One partition that a consumer reads: its reader, its current page and its position.

    messages: the current page.
    at: how many messages of the current page the program has received.
    handed_index: the index after the last message that the program has received.
    next_index: the position, which is the index after the last processed message.
    saved_index: the highest position sent to be saved.
    kept_index: the highest position whose save was confirmed.
    unsaved: the number of messages processed since the last save.
    ended: whether the partition has been read to its end.

    Invariant: kept_index <= saved_index <= next_index <= handed_index.
    """

    __slots__ = (
        "at",
        "ended",
        "handed_index",
        "handle",
        "kept_index",
        "messages",
        "next_index",
        "reader",
        "saved_index",
        "unsaved",
    )

    def __init__(self, handle: PartitionHandle, reader: Reader, index: int) -> None:
        self.handle = handle
        self.reader = reader
        self.next_index = self.handed_index = self.saved_index = self.kept_index = index
        self.unsaved = 0
        self.messages: Sequence[RichMessage] = ()
        self.at = 0
        self.ended = False

    @property
    def partition(self) -> int:
        return self.handle.partition

    @property
    def has_messages(self) -> bool:
        """Whether the current page has messages that the program has not received."""
        return self.at < len(self.messages)

    def hand_out_named(self) -> tuple[int, RichMessage]:
        """Return the partition's number and the next message of the current page. There must be a next message."""
        return self.handle.partition, self.hand_out()

    def hand_out(self) -> RichMessage:
        """Return the next message of the current page. There must be a next message."""
        message = self.messages[self.at]
        self.at += 1
        self.handed_index = message.index + 1
        return message

    def check(self) -> None:
        """Assert that the four indexes are ordered as the invariant says."""
        assert self.kept_index <= self.saved_index <= self.next_index <= self.handed_index


class ReadingLoop:
    """Reads the partitions of one consumer, and records the consumer's position in each partition.

    readings: the partitions being read, by number.
    current: the partition whose page the program receives at the moment; None if there is none.
    holes: the number of missing indexes, in all partitions.
    processed: how many messages the program has processed since the start.
    woken: whether `wake` was called, and neither `next_reading` nor the consumer has reacted yet.
    """

    def __init__(self, session: Session, stream_name: str, positions: Positions, options: ConsumerOptions) -> None:
        self._session = session
        self._stream_name = stream_name
        self._positions = positions
        self._options = options
        self._save_messages = options.save_messages or options.page_messages
        self._merge = Merge(session.shell)
        self._by_reader: dict[Reader, PartitionReading] = {}
        self._save_due_s = math.inf
        self.readings: dict[int, PartitionReading] = {}
        self.current: PartitionReading | None = None
        self.holes = 0
        self.processed = 0
        self.woken = False

    async def add(self, handles: Sequence[PartitionHandle]) -> None:
        """Begin to read these partitions too, each at its saved position. Partitions that are already being read are
        ignored.
        """
        new = [handle for handle in handles if handle.partition not in self.readings]
        if not new:
            return
        indexes = await self._positions.load(self._stream_name, [handle.partition for handle in new])
        for handle, index in zip(new, indexes, strict=True):
            reader = Reader(
                self._session,
                handle,
                FromIndex(index),
                page_messages=self._options.page_messages,
                waits=True,
                on_page=self._merge.arrived,
                idle_delay_s=self._options.idle_delay_s,
            )
            self.readings[handle.partition] = self._by_reader[reader] = PartitionReading(handle, reader, index)

    def drop(self, partition: int) -> None:
        """Stop reading this partition. Its pages are dropped."""
        reading = self.readings.pop(partition)
        del self._by_reader[reading.reader]
        self._merge.drop(reading.reader)
        if reading is self.current:
            self.current = None

    def stop(self) -> None:
        for partition in list(self.readings):
            self.drop(partition)

    def begin(self) -> None:
        """Prepare for a new iteration: no partition counts as read to its end any more, since each perhaps has new
        messages.
        """
        for reading in self.readings.values():
            reading.ended = False

    def wake(self) -> None:
        """Make `next_reading` return None: at once if it is waiting, otherwise when it is about to wait."""
        self.woken = True
        self._merge.wake()

    def commit(self) -> None:
        """Count the last message that the program has received as processed.

        Consumers call this method when the program asks for the next message.
        """
        reading = self.current
        if reading is None or reading.handed_index == reading.next_index:
            return
        # The rest of a page is nobody's whose client has ended, such as a forked process.
        self._session.core.connection.check_open()
        reading.next_index = reading.handed_index
        reading.unsaved += 1
        self.processed += 1
        now_s = self._session.shell.now_s()
        if reading.unsaved >= self._save_messages or now_s >= self._save_due_s:
            self.save_nowait()
        elif self._save_due_s == math.inf:
            self._save_due_s = now_s + self._options.save_interval_s

    # blocking only: def send_lagging(self) -> None:
    # blocking only:     """Send the saves and lease renewals that are due, also between two messages of one page."""
    # blocking only:     self._session.shell.send_lagging()

    async def next_reading(self, stop_at_end: bool) -> PartitionReading | None:
        """Wait until a partition has messages, and return its PartitionReading.

        Returns None after `wake`. If `stop_at_end` is true, returns None also when all partitions have been read to
        their end, and raises RequestTimeout if the node does not answer.
        """
        if self.current is not None and self.current.has_messages:
            return self.current
        self._ask(stop_at_end)
        # An endless loop may wait for ever. A loop that stops at the end must not hang if no answer comes.
        patience_s = self._session.answer_timeout_s if stop_at_end else None
        give_up_s = math.inf if patience_s is None else self._session.shell.now_s() + patience_s + LONG_POLL_S
        while not (stop_at_end and self.has_ended()):
            if self.woken:
                self.woken = False
                return None
            # The wait ends when a save is due. Otherwise a quiet stream would delay the save until the next message.
            reader = await self._merge.next_ready(min(self._save_due_s, give_up_s) - self._session.shell.now_s())
            now_s = self._session.shell.now_s()
            if now_s >= self._save_due_s:
                self.save_nowait()
            if reader is None:
                if now_s >= give_up_s:
                    raise RequestTimeout(f"{self._session.address} has not answered a pull in time")
            elif await self._turn_page(self._by_reader[reader], stop_at_end):
                return self.current
        # All messages have been read and processed, so this is the last chance to save the final position.
        await self.save()
        return None

    def has_ended(self) -> bool:
        """Whether every partition has been read to its end."""
        return all(reading.ended for reading in self.readings.values())

    def save_nowait(self) -> None:
        """Send the positions that have changed since the last save, without waiting."""
        moved = {
            partition: reading.next_index
            for partition, reading in self.readings.items()
            if reading.next_index > reading.saved_index
        }
        if moved:
            self._positions.save_nowait(self._stream_name, moved)
        self._saved(moved)

    async def save(self, partitions: Collection[int] | None = None) -> None:
        """Save the positions that have changed, and return when they are safely stored.

        partitions: the numbers of the partitions to save; None: all.
        """
        chosen = self.readings if partitions is None else partitions
        moved = {
            partition: reading.next_index
            for partition, reading in self.readings.items()
            if partition in chosen and reading.next_index > reading.kept_index
        }
        if moved:
            await self._positions.save(self._stream_name, moved)
            for partition, index in moved.items():
                self.readings[partition].kept_index = index
        self._saved(moved)

    def _saved(self, indexes: Mapping[int, int]) -> None:
        for partition, index in indexes.items():
            reading = self.readings.get(partition)
            if reading is not None:
                reading.saved_index = max(reading.saved_index, index)
                reading.unsaved = 0
        self._save_due_s = math.inf

    def _ask(self, stop_at_end: bool) -> None:
        """Request the next page of each partition.

        stop_at_end: whether to skip the partitions that have been read to their end.
        """
        for reading in self.readings.values():
            reading.reader.waits = not stop_at_end
            if not (stop_at_end and reading.ended):
                reading.reader.ask()

    async def _turn_page(self, reading: PartitionReading, stop_at_end: bool) -> bool:
        """Make the page that has arrived the current page of its partition, and request the next page.

        Returns whether the arrived page has messages.
        """
        page = reading.reader.take()
        self._check(reading, page)
        reading.ended = page.at_end
        # The reader will not fetch this page again, so the page is kept before any code can raise an error.
        reading.messages, reading.at = page.messages, 0
        if page.messages:
            self.current = reading
            self._tell_holes(reading)
        # The next page travels while the program processes this page. Without this, every page would cost a round trip.
        if not (stop_at_end and reading.ended):
            reading.reader.ask()
            await self._session.shell.give_way()
        return bool(page.messages)

    def _check(self, reading: PartitionReading, page: Page) -> None:
        """Raise PositionBeyondEnd if the position is beyond the partition's end.

        If so, the stream was deleted and created again after the position was saved.
        """
        if page.next_index is not None and page.next_index < reading.next_index:
            raise PositionBeyondEnd(
                f"the position of {self._stream_name!r}, partition {reading.partition} is {reading.next_index}, and "
                f"the stream ends at {page.next_index}: it was made again; set the position to go on"
            )

    def _tell_holes(self, reading: PartitionReading) -> None:
        """Count the missing indexes before and between the current page's messages, and report them to `on_hole`."""
        for first_missing, next_there in find_holes(reading.messages, reading.handed_index or None):
            self.holes += next_there - first_missing
            if self._options.on_hole is not None:
                self._options.on_hole(reading.partition, first_missing, next_there)
