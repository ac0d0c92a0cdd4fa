# Generated from stream_client/consume/consumer.py by tools/generate_blocking.py; do not edit.
"""Consumers that resume where they stopped: of one partition, or of some or all partitions of a stream.

`ReadingLoop` reads, and decides which messages count as processed; `Positions` keep the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack

from stream_client.blocking.admin import StreamAdmin
from stream_client.blocking.consume.reading_loop import PartitionReading, ReadingLoop
from stream_client.blocking.positions import Positions, to_positions
from stream_client.consume.options import ConsumerArguments, ConsumerOptions, with_options_shown
from stream_client.core.partition_handle import PartitionHandle
from stream_service.extensions import RichMessage

T = TypeVar("T")


class BaseConsumer:
    """The base of all consumers: everything except iterating. A context manager, which saves the position."""

    def __init__(self, streams: Sequence[StreamAdmin], positions: Positions, options: ConsumerOptions) -> None:
        self._handles = [stream.handle for stream in streams]
        self._name = getattr(positions, "client_id", None)
        self._loop = ReadingLoop(streams[0].session, self._handles[0].name, positions, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Save the position. A block without an error has processed its last message, and waits for the save."""
        try:
            if kind is None:
                self.save(with_last=True)
            else:
                self._loop.save_nowait()
        finally:
            self._loop.stop()

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}"
        where = ", ".join(str(handle.partition) for handle in self._handles)
        return (
            f"<{type(self).__name__}{name} of {self._handles[0].name!r}, partition {where}: {self.processed} processed>"
        )

    @property
    def holes(self) -> int:
        """How many indexes were missing between messages (retention, or deletion), since the start."""
        return self._loop.holes

    @property
    def processed(self) -> int:
        """How many messages have been processed since the start."""
        return self._loop.processed

    def save(self, *, with_last: bool = False) -> None:
        """Save the position now, if it has moved; it is kept when this returns.

        with_last: the message handed out last counts as processed too.
        """
        if with_last:
            self._loop.commit()
        self._loop.save()


class Consumer(BaseConsumer):
    """Iterates over the messages of one partition from the saved position on."""

    @with_options_shown
    def __init__(self, stream: StreamAdmin, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> None:
        super().__init__((stream,), to_positions(stream.session, positions), ConsumerOptions(**options))
        self._partition = stream.handle.partition

    def __iter__(self) -> Messages[RichMessage]:
        return self.messages()

    @property
    def next_index(self) -> int | None:
        """The next index to read; everything below is processed. None before the first message is asked for."""
        reading = self._loop.readings.get(self._partition)
        return None if reading is None else reading.next_index

    def messages(self, *, stop_at_end: bool = False) -> Messages[RichMessage]:
        """Messages in order, for ever, or until the stream has no more (`stop_at_end`). May be taken up again."""
        return Messages(self._loop, self._handles, stop_at_end, PartitionReading.hand_out)


class PartitionedConsumer(BaseConsumer):
    """Iterates over several partitions of a stream, each from its saved position on, a page of each in turn."""

    @with_options_shown
    def __init__(
        self, partitions: Sequence[StreamAdmin], positions: Positions | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        super().__init__(partitions, to_positions(partitions[0].session, positions), ConsumerOptions(**options))

    def __iter__(self) -> Messages[tuple[int, RichMessage]]:
        return self.messages()

    @property
    def next_indexes(self) -> dict[int, int]:
        """By partition, the next index to read; empty before the first message is asked for."""
        return {partition: reading.next_index for partition, reading in self._loop.readings.items()}

    def messages(self, *, stop_at_end: bool = False) -> Messages[tuple[int, RichMessage]]:
        """Partition and message, in order within each partition, for ever, or until no partition has more."""
        return Messages(self._loop, self._handles, stop_at_end, PartitionReading.hand_out_named)


class Messages(Generic[T]):
    """An iteration over the messages that a consumer hands out, in the form that `show` gives them.

    You may leave it at any message, take it up again, and need not close it.
    """

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
        """The next item. Every message handed out before it counts as processed from now on."""
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
        """There is nothing to close; for `contextlib.closing`."""

    def _find_reading(self) -> PartitionReading | None:
        """The partition that has the next message; None at the end."""
        if not self._begun:
            self._loop.add(self._handles)
            self._loop.begin()
            self._begun = True
        return self._loop.next_reading(self._stop_at_end)
