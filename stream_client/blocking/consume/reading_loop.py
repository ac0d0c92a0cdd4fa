# Generated from stream_client/consume/reading_loop.py by tools/generate_blocking.py; do not edit.
"""The reading loop that all consumers share.

The loop reads its partitions in turn, keeps track of the messages that the program has processed, and saves that
position. The consumer that uses the loop chooses the partitions.

A message counts as processed when the next one is asked for. The saved position is the next index to read, as the real
clients save it, and a consumer resumes by pulling exactly this index, so nothing is skipped. After a crash, messages
behind the last save come again. Saves go out in order, and never run ahead of the messages processed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from stream_client.blocking.consume.reader import LONG_POLL_S, Merge, Reader
from stream_client.blocking.positions import Positions
from stream_client.blocking.session import Session
from stream_client.consume.options import ConsumerOptions
from stream_client.consume.page import Page, find_holes
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, RequestTimeout
from stream_service.extensions import FromIndex, RichMessage


class PartitionReading:
    """One partition being consumed: its reader, and the page at hand, of which `at` messages have been handed out.

    handed_index: everything below has been handed out. next_index: everything below is processed. saved_index: up to
    here positions have been sent. kept_index: up to here the keeper of positions has confirmed them.
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
        """Whether the page at hand has messages that have not been handed out."""
        return self.at < len(self.messages)

    def hand_out_named(self) -> tuple[int, RichMessage]:
        """Partition and message, as `hand_out`."""
        return self.handle.partition, self.hand_out()

    def hand_out(self) -> RichMessage:
        """The next message of the page at hand, which must have one."""
        message = self.messages[self.at]
        self.at += 1
        self.handed_index = message.index + 1
        return message

    def check(self) -> None:
        """Assert the invariant."""
        assert self.kept_index <= self.saved_index <= self.next_index <= self.handed_index


class ReadingLoop:
    """The partitions of one stream that one consumer reads, and its position in each.

    readings: by partition. current: the partition whose messages are being handed out. holes: how many indexes were
    missing, in all partitions. processed: how many messages the program has processed since the start. woken: `wake`
    has been called, and neither `next_reading` nor the consumer has reacted yet.
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

    def add(self, handles: Sequence[PartitionHandle]) -> None:
        """Read these partitions too, each from its saved position on."""
        new = [handle for handle in handles if handle.partition not in self.readings]
        if not new:
            return
        indexes = self._positions.load(self._stream_name, [handle.partition for handle in new])
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
        """Stop reading this partition and forget its page."""
        reading = self.readings.pop(partition)
        del self._by_reader[reading.reader]
        self._merge.drop(reading.reader)
        if reading is self.current:
            self.current = None

    def stop(self) -> None:
        for partition in list(self.readings):
            self.drop(partition)

    def begin(self) -> None:
        """Prepare for a new iteration, or one taken up again: each partition's end is looked for anew."""
        for reading in self.readings.values():
            reading.ended = False

    def wake(self) -> None:
        """End the wait of `next_reading`, now or when it next waits."""
        self.woken = True
        self._merge.wake()

    def commit(self) -> None:
        """Count the message handed out last as processed, since the program asks for the next one."""
        reading = self.current
        if reading is None or reading.handed_index == reading.next_index:
            return
        reading.next_index = reading.handed_index
        reading.unsaved += 1
        self.processed += 1
        now_s = self._session.shell.now_s()
        if reading.unsaved >= self._save_messages or now_s >= self._save_due_s:
            self.save_nowait()
        elif self._save_due_s == math.inf:
            self._save_due_s = now_s + self._options.save_interval_s

    def send_lagging(self) -> None:
        """Send the saves and lease renewals that are due, between messages of one page too."""
        self._session.shell.send_lagging()

    def next_reading(self, stop_at_end: bool) -> PartitionReading | None:
        """The partition whose messages come next; None at the end of all, or where `wake` ended the wait.

        Raises RequestTimeout where the loop is to stop at the end, and the node does not tell whether it is there.
        """
        if self.current is not None and self.current.has_messages:
            return self.current
        self._ask(stop_at_end)
        # A loop that goes on for ever waits for ever. One that stops at the end must not hang where no answer comes.
        patience_s = self._session.answer_timeout_s if stop_at_end else None
        give_up_s = math.inf if patience_s is None else self._session.shell.now_s() + patience_s + LONG_POLL_S
        while not (stop_at_end and self.has_ended()):
            if self.woken:
                self.woken = False
                return None
            # A save that falls due ends the wait: a quiet stream would else delay it until the next message.
            reader = self._merge.next_ready(min(self._save_due_s, give_up_s) - self._session.shell.now_s())
            now_s = self._session.shell.now_s()
            if now_s >= self._save_due_s:
                self.save_nowait()
            if reader is None:
                if now_s >= give_up_s:
                    raise RequestTimeout(f"{self._session.address} has not answered a pull in time")
            elif self._turn_page(self._by_reader[reader], stop_at_end):
                return self.current
        # Everything has been read and processed, so the position is at the end and nothing later would save it.
        self.save()
        return None

    def has_ended(self) -> bool:
        """Whether every partition was read to where its stream ended."""
        return all(reading.ended for reading in self.readings.values())

    def save_nowait(self) -> None:
        """Send the positions that have moved since the last save."""
        moved = {
            partition: reading.next_index
            for partition, reading in self.readings.items()
            if reading.next_index > reading.saved_index
        }
        if moved:
            self._positions.save_nowait(self._stream_name, moved)
        self._saved(moved)

    def save(self, partitions: Collection[int] | None = None) -> None:
        """Save the positions that have moved, of some partitions or all; they are kept when this returns."""
        chosen = self.readings if partitions is None else partitions
        moved = {
            partition: reading.next_index
            for partition, reading in self.readings.items()
            if partition in chosen and reading.next_index > reading.kept_index
        }
        if moved:
            self._positions.save(self._stream_name, moved)
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
        """Ask for the next page of each partition."""
        for reading in self.readings.values():
            reading.reader.waits = not stop_at_end
            if not (stop_at_end and reading.ended):
                reading.reader.ask()

    def _turn_page(self, reading: PartitionReading, stop_at_end: bool) -> bool:
        """Take the page that has come, and ask for the one behind it; whether the page has messages."""
        page = reading.reader.take()
        self._check(reading, page)
        reading.ended = page.at_end
        # The reader has moved on and would not fetch this page again, so it is kept before anything can raise.
        reading.messages, reading.at = page.messages, 0
        if page.messages:
            self.current = reading
            self._tell_holes(reading)
        # The next page travels while the program processes this one; without it every page costs a round trip.
        if not (stop_at_end and reading.ended):
            reading.reader.ask()
            self._session.shell.give_way()
        return bool(page.messages)

    def _check(self, reading: PartitionReading, page: Page) -> None:
        """Raises PositionBeyondEnd where the stream is not the one whose position was saved."""
        if page.next_index is not None and page.next_index < reading.next_index:
            raise PositionBeyondEnd(
                f"the position of {self._stream_name!r}, partition {reading.partition} is {reading.next_index}, and "
                f"the stream ends at {page.next_index}: it was made again; set the position to go on"
            )

    def _tell_holes(self, reading: PartitionReading) -> None:
        """Count and report the holes in front of and inside the page at hand, before its first message goes out."""
        for first_missing, next_there in find_holes(reading.messages, reading.handed_index or None):
            self.holes += next_there - first_missing
            if self._options.on_hole is not None:
                self._options.on_hole(reading.partition, first_missing, next_there)
