"""Consumers that resume where they stopped: of one stream-partition, or of some or all partitions of a stream.

Where positions are kept is somebody else's business (`Positions`); what counts as processed is `consumption`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from stream_client.consume.consumption import (
    ConsumerArguments,
    ConsumerOptions,
    Consumption,
    Part,
    Positions,
    with_options_shown,
)
from stream_client.consume.iteration import Messages
from stream_client.positions.named import to_positions
from stream_service.extensions import RichMessage

if TYPE_CHECKING:
    from stream_client.streams import Stream


class BaseConsumer:
    """What a consumer's owner can do beside iterating. A context manager, which saves how far it came."""

    def __init__(self, streams: Sequence[Stream], positions: Positions, options: ConsumerOptions) -> None:
        self._handles = [stream.handle for stream in streams]
        self._name = getattr(positions, "client_id", None)
        self._consumption = Consumption(streams[0].session, streams[0].name, positions, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Save, waiting for the answer only where nothing went wrong: the message at hand then counts as processed."""
        try:
            if kind is None:
                await self.save(with_last=True)
            else:
                self._consumption.save_nowait()
        finally:
            self._consumption.stop()

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}"
        where = ", ".join(str(handle.partition) for handle in self._handles)
        return (
            f"<{type(self).__name__}{name} of {self._handles[0].name!r}, partition {where}: {self.processed} processed>"
        )

    @property
    def holes(self) -> int:
        """How many indexes were missing between messages (retention, or deletion), since the start."""
        return self._consumption.holes

    @property
    def processed(self) -> int:
        """How many messages have been processed since the start."""
        return self._consumption.processed

    async def save(self, *, with_last: bool = False) -> None:
        """Save the position now, if it has moved; it is kept when this returns.

        with_last: the message handed out last counts as processed too.
        """
        if with_last:
            self._consumption.commit()
        await self._consumption.save()


class Consumer(BaseConsumer):
    """Iterates over the messages of one stream-partition from the saved position on."""

    @with_options_shown
    def __init__(self, stream: Stream, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> None:
        super().__init__((stream,), to_positions(stream.session, positions), ConsumerOptions(**options))
        self._partition = stream.partition

    def __aiter__(self) -> Messages[RichMessage]:
        return self.messages()

    @property
    def next_index(self) -> int | None:
        """The next index to read, everything below is processed; None before the first message is asked for."""
        part = self._consumption.parts.get(self._partition)
        return None if part is None else part.next_index

    def messages(self, *, stop_at_end: bool = False) -> Messages[RichMessage]:
        """Messages in order, for ever, or until the stream has no more (`stop_at_end`). May be taken up again."""
        return Messages(self._consumption, self._handles, stop_at_end, Part.hand_out)


class PartitionedConsumer(BaseConsumer):
    """Iterates over several partitions of a stream, each from its saved position on, a page of each in turn."""

    @with_options_shown
    def __init__(
        self, partitions: Sequence[Stream], positions: Positions | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        super().__init__(partitions, to_positions(partitions[0].session, positions), ConsumerOptions(**options))

    def __aiter__(self) -> Messages[tuple[int, RichMessage]]:
        return self.messages()

    @property
    def next_indexes(self) -> dict[int, int]:
        """By partition, the next index to read; empty before the first message is asked for."""
        return {partition: part.next_index for partition, part in self._consumption.parts.items()}

    def messages(self, *, stop_at_end: bool = False) -> Messages[tuple[int, RichMessage]]:
        """Partition and message, in order within each partition, for ever, or until no partition has more."""
        return Messages(self._consumption, self._handles, stop_at_end, Part.hand_out_named)
