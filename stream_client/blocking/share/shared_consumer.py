# Generated from stream_client/share/shared_consumer.py by tools/generate_blocking.py; do not edit.
"""A consumer that shares the partitions of a stream with the other members of a consumer group.

`LeaseMember` tells which partitions this member holds, by leases with fences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self, Unpack

from stream_client.blocking.admin import StreamAdmin
from stream_client.blocking.consume.consumer import BaseConsumer
from stream_client.blocking.consume.reading_loop import PartitionReading, ReadingLoop
from stream_client.blocking.share.leases import LeaseMember, to_member
from stream_client.consume.options import ConsumerArguments, ConsumerOptions, with_options_shown
from stream_client.errors import ClientError, LeaseLost
from stream_service.extensions import RichMessage


class SharedConsumer(BaseConsumer):
    """Iterates over the partitions that this member holds at the moment. A context manager: it leaves at the end.

    When the node asks for a partition back, the consumer saves its position and gives it up between two messages; the
    other partitions go on. When a lease is lost (this process was too slow, or cut off), the iterator raises LeaseLost
    and may then be taken up again. The blocking client renews leases inside its calls only, so there a message that
    takes longer to process than a lease lasts (10 s by default) costs the lease.
    """

    @with_options_shown
    def __init__(
        self, partitions: Sequence[StreamAdmin], membership: LeaseMember | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        """partitions: all partitions of the stream. membership: a LeaseMember, or the name of the group."""
        member = to_member(partitions[0].session, membership)
        super().__init__(partitions, member, ConsumerOptions(**options))
        self._stream_name = partitions[0].handle.name
        self._by_partition = {stream.handle.partition: stream.handle for stream in partitions}
        self._member = member
        self._fences: dict[int, int] = {}
        self._lost: set[int] = set()
        self._joined = False

    def __enter__(self) -> Self:
        self._join()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.save(with_last=True)
                self._member.leave()
            else:
                self._loop.save_nowait()
        finally:
            self._member.leave_nowait()
            self._loop.stop()

    def __iter__(self) -> SharedMessages:
        return self.messages()

    @property
    def fences(self) -> dict[int, int]:
        """By partition, the fence under which its messages are handed out.

        Pass the fence along with each effect that must not happen twice, so that a late effect can be refused.
        """
        return dict(self._fences)

    def messages(self, *, stop_at_end: bool = False) -> SharedMessages:
        """Partition and message, in order within each; for ever, or until the partitions held have no more.

        The iteration raises LeaseLost; you may then go on with it, or call this again.
        """
        self._join()
        return SharedMessages(self, self._loop, stop_at_end)

    def is_held(self, reading: PartitionReading) -> bool:
        """Whether the lease under which the partition is read is still held."""
        return self._member.find_fence(reading.partition) == self._fences.get(reading.partition)

    def follow_leases(self) -> None:
        """Give back the partitions asked back, and begin to read those got. Raises LeaseLost for those lost."""
        # From here on the leases are looked at; a change that comes later must wake the reading loop anew.
        self._loop.woken = False
        held, asked_back = self._member.check()
        # A partition that is no longer ours must not be read, nor saved, by any of the steps below.
        self._drop_lost()
        returned = asked_back & self._fences.keys()
        if returned and not self._has_saved(returned):
            # Without the save, the next member would process again the messages that this one has processed. So this
            # member keeps the partitions, and tries again when it looks at the leases the next time.
            asked_back -= returned
        elif returned:
            # The save took time, in which more leases may have been lost.
            self._drop_lost()
            for partition in returned & self._fences.keys():
                self._drop(partition)
        for partition in asked_back:
            self._member.give_back(partition)
        self._begin(sorted(held - asked_back - self._fences.keys()))
        # Told last, so that the iteration may be taken up again with everything in order.
        lost, self._lost = self._lost, set()
        if lost:
            raise LeaseLost(self._stream_name, lost)

    def save(self, *, with_last: bool = False) -> None:
        """Save the positions now; they are kept when this returns. with_last: as `Consumer.save`. Raises LeaseLost."""
        super().save(with_last=with_last)
        self.follow_leases()

    def _join(self) -> None:
        if not self._joined:
            self._joined = True
            self._member.join(self._stream_name, len(self._by_partition), self._loop.wake)

    def _has_saved(self, partitions: Collection[int]) -> bool:
        """Save these positions; False after an error that a retry may help. Raises any other error."""
        try:
            self._loop.save(partitions)
        except ClientError as error:
            if not error.retriable:
                raise
            return False
        return True

    def _drop_lost(self) -> None:
        """Stop reading each partition whose lease is not the one it was begun under, and note that it is lost."""
        find_fence = self._member.find_fence
        lost = {partition for partition, fence in self._fences.items() if find_fence(partition) != fence}
        for partition in lost:
            self._drop(partition)
        self._lost |= lost

    def _begin(self, partitions: Sequence[int]) -> None:
        """Read these partitions too, each from the position that its last member saved."""
        fences = {partition: self._member.find_fence(partition) for partition in partitions}
        self._loop.add([self._by_partition[partition] for partition in partitions])
        # Loading the positions took time. A lease that ended meanwhile may have moved on to a member that saves.
        for partition, fence in fences.items():
            if fence is not None and self._member.find_fence(partition) == fence:
                self._fences[partition] = fence
            else:
                self._loop.drop(partition)

    def _drop(self, partition: int) -> None:
        del self._fences[partition]
        self._loop.drop(partition)


class SharedMessages:
    """An iteration over the messages of one member's partitions. It may be left at any message, and gone on with after
    LeaseLost."""

    def __init__(self, consumer: SharedConsumer, loop: ReadingLoop, stop_at_end: bool) -> None:
        self._consumer = consumer
        self._loop = loop
        self._stop_at_end = stop_at_end
        self._reading: PartitionReading | None = None
        self._begun = self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, RichMessage]:
        """The next message. The one handed out before counts as processed from now on, if its lease is still held."""
        self._loop.send_lagging()
        reading, self._reading = self._reading, None
        current = self._loop.current
        # A message whose lease is gone comes to another member, so this one must not save behind it.
        if current is not None and self._consumer.is_held(current):
            self._loop.commit()
            # Most messages come from the page at hand; `woken` says that the leases must be looked at first.
            if current is reading and reading.has_messages and not self._loop.woken:
                self._reading = reading
                return reading.hand_out_named()
        self._reading = reading = self._find_reading()
        return reading.hand_out_named()

    def close(self) -> None:
        """There is nothing to close; for `contextlib.closing`."""

    def _find_reading(self) -> PartitionReading:
        """The partition that has the next message, under a lease that is held. Raises LeaseLost, StopIteration."""
        loop = self._loop
        if not self._begun:
            loop.begin()
            self._begun = True
        while not self._ended:
            self._consumer.follow_leases()
            reading = loop.next_reading(self._stop_at_end and bool(loop.readings))
            if reading is not None and self._consumer.is_held(reading):
                return reading
            self._ended = self._stop_at_end and bool(loop.readings) and loop.has_ended()
        raise StopIteration
