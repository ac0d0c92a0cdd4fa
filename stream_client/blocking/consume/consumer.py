# Generated from stream_client/consume/consumer.py by tools/generate_blocking.py; do not edit.
"""Consumers: iterators that resume at their saved position, over one or several partitions of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar, Unpack

from stream_client.blocking.admin import StreamAdmin
from stream_client.blocking.consume.reading_loop import ReadingLoop
from stream_client.blocking.positions import Positions, to_positions
from stream_client.consume.options import ConsumerArguments, ConsumerOptions, with_options_shown
from stream_client.consume.readings import PartitionReading, ReadingConsumer
from stream_client.core.partition_handle import PartitionHandle
from stream_service.extensions import RichMessage

T = TypeVar("T")


class BaseConsumer(ReadingConsumer):
    """The base class of all consumers, a context manager; subclasses add the iteration. The end of its block saves the
    positions. After a block without an error, the last message counts as processed."""

    _loop: ReadingLoop

    def __init__(self, streams: Sequence[StreamAdmin], positions: Positions, options: ConsumerOptions) -> None:
        loop = ReadingLoop(streams[0].session, streams[0].handle.name, positions, options)
        super().__init__(loop, [stream.handle for stream in streams], getattr(positions, "client_id", None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, the program perhaps has not processed its last message, so that message does not count.
        try:
            if kind is None:
                self.save(with_last=True)
            else:
                self._loop.save_nowait()
        finally:
            self._loop.stop()

    def save(self, *, with_last: bool = False) -> None:
        """Saves the changed positions now: when this method returns, they are safely stored. `with_last`: whether the
        last message that the program has received counts as processed."""
        if with_last:
            self._loop.commit()
        self._loop.save()


class Consumer(BaseConsumer):
    """Iterates over the messages of one partition, beginning at the saved position."""

    @with_options_shown
    def __init__(self, stream: StreamAdmin, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> None:
        super().__init__((stream,), to_positions(stream, positions), ConsumerOptions(**options))
        self._partition = stream.handle.partition

    def __iter__(self) -> Messages[RichMessage]:
        return self.messages()

    @property
    def next_index(self) -> int | None:
        """The next index to read: all messages with lower indexes are processed. None before the first iteration."""
        reading = self._loop.readings.get(self._partition)
        return None if reading is None else reading.next_index

    def messages(self, *, stop_at_end: bool = False) -> Messages[RichMessage]:
        """Returns an iterator over the messages in order, to the end of the stream (`stop_at_end`) or without end. You
        can stop at any message, and continue with a new iterator."""
        return Messages(self._loop, self._handles, stop_at_end, PartitionReading.hand_out)


class PartitionedConsumer(BaseConsumer):
    """Iterates over the messages of several partitions, page by page, in the order in which the pages arrive."""

    @with_options_shown
    def __init__(
        self, partitions: Sequence[StreamAdmin], positions: Positions | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        super().__init__(partitions, to_positions(partitions[0], positions), ConsumerOptions(**options))

    def watch_partitions(self, known: int) -> None:
        """Makes the consumer read partitions that are added later, too. known: the present number of partitions."""
        self._loop.watch_partitions(self._handles, known)

    def __iter__(self) -> Messages[tuple[int, RichMessage]]:
        return self.messages()

    @property
    def next_indexes(self) -> dict[int, int]:
        """The next index to read of each partition, by partition number. Empty before the first iteration."""
        return {partition: reading.next_index for partition, reading in self._loop.readings.items()}

    def messages(self, *, stop_at_end: bool = False) -> Messages[tuple[int, RichMessage]]:
        """Returns an iterator over pairs of partition number and message, in order within each partition, to the end of
        all partitions (`stop_at_end`) or without end."""
        return Messages(self._loop, self._handles, stop_at_end, PartitionReading.hand_out_named)


class Messages(Generic[T]):
    """An iterator over the messages of a consumer. You can stop at any message and continue later."""

    def __init__(
        self,
        loop: ReadingLoop,
        handles: Sequence[PartitionHandle],
        stop_at_end: bool,
        show: Callable[[PartitionReading], T],
    ) -> None:
        self._loop = loop
        self._handles = handles
        self._stop_at_end = stop_at_end
        self._show = show
        self._begun = self._ended = False
        self._reading: PartitionReading | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Returns the next item. This call counts all messages returned before as processed."""
        self._loop.send_lagging()
        self._loop.commit()
        reading = self._reading
        if reading is None or not reading.has_messages:
            reading = self._reading = None if self._ended else self._find_reading()
            if reading is None:
                self._ended = True
                raise StopIteration
        return self._show(reading)

    def close(self) -> None:
        """Does nothing, since there is nothing to close. `contextlib.closing` calls this method."""

    def _find_reading(self) -> PartitionReading | None:
        if not self._begun:
            self._loop.add(self._handles)
            self._loop.begin()
            self._begun = True
        return self._loop.next_reading(self._stop_at_end)
