"""ReadingLoop: reads the partitions of a consumer, and saves its position in each (`PartitionReading`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from stream_client.consume.page import ConsumerOptions, find_holes
from stream_client.consume.reader import LONG_POLL_S, Merge, Reader
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, PositionReset, RequestTimeout, StreamRemade
from stream_client.partitions import PartitionWatch
from stream_client.positions import KnownPosition, Positions, resume
from stream_client.session import ClientSession
from stream_service.extensions import FromIndex, RichMessage


class PartitionReading:
    """One partition that a consumer reads: its reader, its current page and its position.

    mark: the incarnation of the stream and the generation of the saved position, as far as they are known.
    messages: the current page, of which the program has received the first `at` messages.
    handed_index: the index after the last message that the program has received.
    next_index: the position, which is the index after the last processed message.
    saved_index: the highest position sent to be saved.
    kept_index: the highest position whose save was confirmed.
    unsaved: the number of messages processed since the last save.
    ended: whether the partition has been read to its end.

    Invariant: kept_index <= saved_index <= next_index <= handed_index.
    """

    def __init__(self, handle: PartitionHandle, reader: Reader, mark: KnownPosition) -> None:
        self.handle = handle
        self.mark = mark
        self.go_to(reader, mark.index)

    def go_to(self, reader: Reader, index: int) -> None:
        """Goes on at an index with a new reader. The current page is dropped."""
        self.reader = reader
        self.next_index = self.handed_index = self.saved_index = self.kept_index = index
        self.unsaved = 0
        self.ended = False
        self.drop_page()

    def drop_page(self) -> None:
        self.messages: Sequence[RichMessage] = ()
        self.at = 0

    @property
    def partition(self) -> int:
        return self.handle.partition

    @property
    def has_messages(self) -> bool:
        return self.at < len(self.messages)

    def hand_out_named(self) -> tuple[int, RichMessage]:
        return self.handle.partition, self.hand_out()

    def hand_out(self) -> RichMessage:
        # The slice turns a packed page (`PackedMessages`) into a list of messages, all at once.
        if not self.at:
            self.messages = self.messages[:]
        message = self.messages[self.at]
        self.at += 1
        self.handed_index = message.index + 1
        return message

    def check(self) -> None:
        assert self.kept_index <= self.saved_index <= self.next_index <= self.handed_index


CHECK_S = 5.0
"""The interval in which a waiting consumer asks whether somebody has set its position, in seconds."""

logger = logging.getLogger("stream_client")


class ReadingLoop:
    """Reads the partitions of one consumer, page by page, and saves the consumer's position in each.

    readings: the partitions being read, by number. `current` is the one whose page the program receives at the moment.
    holes, processed: the numbers of missing indexes and of processed messages, in all partitions since the start.
    watch: notices partitions that are added to the stream; None: later partitions are not read.
    woken: whether `wake` was called, and neither `next_reading` nor the consumer has reacted yet.
    """

    def __init__(
        self, session: ClientSession, stream_name: str, positions: Positions, options: ConsumerOptions
    ) -> None:
        self._session = session
        self.shell = session.shell
        self._stream_name = stream_name
        self._positions = positions
        self._options = options
        self._save_messages = options.save_messages or options.page_messages
        self._merge = Merge()
        self._by_reader: dict[Reader, PartitionReading] = {}
        self._save_due_s = math.inf
        self._check_due_s = session.shell.now_s() + CHECK_S
        self._resets: set[int] = set()
        self._added: list[PartitionHandle] = []
        self.watch: PartitionWatch | None = None
        self.readings: dict[int, PartitionReading] = {}
        self.current: PartitionReading | None = None
        self.holes = 0
        self.processed = 0
        self.woken = False

    async def add(self, handles: Sequence[PartitionHandle]) -> None:
        """Begins to read the partitions that are not being read yet, each at its saved position."""
        new = [handle for handle in handles if handle.partition not in self.readings]
        if not new:
            return
        partitions = [handle.partition for handle in new]
        marks = await resume(self._positions, self._stream_name, partitions, self._note_reset)
        for handle, mark in zip(new, marks, strict=True):
            reader = self._make_reader(handle, mark.index, mark.created_us)
            self.readings[handle.partition] = self._by_reader[reader] = PartitionReading(handle, reader, mark)

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
            watch_due_s = math.inf if self.watch is None else self.watch.due_s
            due_s = min(self._save_due_s, self._check_due_s, watch_due_s, give_up_s)
            wait_s = due_s - self._session.shell.now_s()
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
        for partition, index in moved.items():
            reading = self.readings.get(partition)
            # During the wait, somebody may have set the position, or the lease may have been lost.
            if reading is not None and partition not in self._resets:
                reading.kept_index = index
        self._saved(moved)

    def drop(self, partition: int) -> None:
        reading = self.readings.pop(partition)
        self._resets.discard(partition)
        del self._by_reader[reading.reader]
        self._merge.drop(reading.reader)
        if reading is self.current:
            self.current = None

    def stop(self) -> None:
        if self.watch is not None:
            self.watch.stop()
        for partition in list(self.readings):
            self.drop(partition)

    def watch_partitions(self, handles: list[PartitionHandle], known: int) -> None:
        """Begins to notice partitions that are added to the stream. They are read, and added to `handles`. known: the
        present number of partitions."""

        def grow(partitions: list[int]) -> None:
            added = self._session.core.find_handles(self._stream_name, partitions)
            handles.extend(added)
            self._added += added
            self._merge.wake()

        self.watch = PartitionWatch(self._session, self._stream_name, known, grow)

    def begin(self) -> None:
        """Prepares a new iteration: no partition counts as read to its end any more."""
        for reading in self.readings.values():
            reading.ended = False

    def wake(self) -> None:
        """Makes `next_reading` return None: at once if it is waiting, otherwise when it is about to wait."""
        self.woken = True
        self._merge.wake()

    def commit(self) -> None:
        """Counts the last received message as processed, since the program asks for the next one."""
        reading = self.current
        if reading is None or reading.handed_index == reading.next_index:
            return
        # A client that has ended, for example in a forked process, must not count messages that the parent reads too.
        self._session.core.connection.check_open()
        reading.next_index = reading.handed_index
        reading.unsaved += 1
        self.processed += 1
        now_s = self._session.shell.now_s()
        # The first unsaved message starts the interval. Its save is due even if no other message comes.
        if reading.unsaved >= self._save_messages or now_s >= self._save_due_s:
            self.save_nowait()
        elif self._save_due_s == math.inf:
            self._save_due_s = now_s + self._options.save_interval_s

    def has_ended(self) -> bool:
        return all(reading.ended for reading in self.readings.values())

    def save_nowait(self) -> None:
        moved = self._moved(None, lambda reading: reading.saved_index)
        if moved:
            self._positions.save_nowait(self._stream_name, moved)
        self._saved(moved)

    def _moved(self, partitions: Collection[int] | None, before: Callable[[PartitionReading], int]) -> dict[int, int]:
        """Returns the positions of these partitions (None: all) that are higher than the result of `before`. Leaves out
        a position that somebody else has set: this consumer goes on there."""
        return {
            partition: reading.next_index
            for partition, reading in self.readings.items()
            if (partitions is None or partition in partitions)
            and reading.next_index > before(reading)
            and partition not in self._resets
        }

    def _saved(self, indexes: Mapping[int, int]) -> None:
        for partition, index in indexes.items():
            reading = self.readings.get(partition)
            if reading is not None:
                reading.saved_index = max(reading.saved_index, index)
                reading.unsaved = 0
        self._save_due_s = math.inf

    def _do_due(self, now_s: float) -> None:
        # A wait can have ended for several of these reasons, so each is checked.
        if now_s >= self._save_due_s:
            self.save_nowait()
        # Answers to saves show whether somebody has set a position, but a quiet consumer saves nothing, so it asks.
        if now_s >= self._check_due_s:
            self._check_due_s = now_s + CHECK_S
            if hasattr(self._positions, "check_nowait"):
                self._positions.check_nowait(self._stream_name, list(self.readings))
        if self.watch is not None:
            self.watch.poll()

    def _ask(self, stop_at_end: bool) -> None:
        for reading in self.readings.values():
            reading.reader.waits = not stop_at_end
            if not (stop_at_end and reading.ended):
                reading.reader.ask()

    def _note_reset(self, partition: int) -> None:
        """Records that somebody else has changed the position of a partition. Drops the rest of its page."""
        reading = self.readings.get(partition)
        if reading is not None:
            self._resets.add(partition)
            reading.drop_page()
            self._merge.wake()

    def _go_to(self, reading: PartitionReading, index: int) -> None:
        del self._by_reader[reading.reader]
        self._merge.drop(reading.reader)
        reader = self._make_reader(reading.handle, index, reading.mark.created_us)
        reading.go_to(reader, index)
        self._by_reader[reader] = reading

    def _make_reader(self, handle: PartitionHandle, index: int, created_us: int) -> Reader:
        return Reader(
            self._session,
            handle,
            FromIndex(index),
            page_messages=self._options.page_messages,
            waits=True,
            on_page=self._merge.arrived,
            idle_delay_s=self._options.idle_delay_s,
            created_us=created_us,
        )

    def _tell(self, event: StreamRemade | PositionReset) -> None:
        if self._options.on_event is not None:
            self._options.on_event(event)
        else:
            logger.warning("%s", event)

    async def _turn_page(self, reading: PartitionReading, stop_at_end: bool) -> bool:
        """Makes the arrived page the current one, and requests the next. Returns whether it has messages. Raises
        PositionBeyondEnd if the position is beyond the partition's end."""
        page = reading.reader.take()
        # The position means nothing in a stream that was made again, and neither does the page that begins at it.
        if page.created_us is not None and not reading.mark.is_of(page.created_us):
            await self._begin_anew(reading, page.created_us)
            self._ask(stop_at_end)
            return False
        if page.created_us is not None:
            # From here on the node returns no messages of another incarnation.
            reading.mark.created_us = reading.reader.created_us = page.created_us
        if page.next_index is not None and page.next_index < reading.next_index:
            raise PositionBeyondEnd(
                f"the position of {self._stream_name!r}, partition {reading.partition} is {reading.next_index}, and "
                f"the stream ends at {page.next_index}: it has lost messages or was made again; set the position"
            )
        reading.ended = page.at_end
        # The reader will not fetch this page again, so the page is stored before any code can raise an error.
        reading.messages, reading.at = page.messages, 0
        if page.messages:
            self.current = reading
            for first_missing, next_there in find_holes(reading.messages, reading.handed_index or None):
                self.holes += next_there - first_missing
                if self._options.on_hole is not None:
                    self._options.on_hole(reading.partition, first_missing, next_there)
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
        for partition, mark in zip(partitions, marks, strict=True):
            self._resets.discard(partition)
            reading = self.readings.get(partition)
            if reading is None:
                continue
            before, known_us = reading.next_index, reading.mark.created_us
            reading.mark = mark
            # A new position, made because the old one was deleted, belongs to no incarnation yet.
            mark.created_us = mark.created_us or known_us
            self._go_to(reading, mark.index)
            if mark.index != before:
                self._tell(PositionReset(self._stream_name, partition, before, mark.index))
