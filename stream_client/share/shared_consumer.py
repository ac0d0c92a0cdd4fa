"""SharedConsumer: a consumer that shares the partitions of a stream with the other members of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, Unpack

from stream_client.admin import StreamAdmin
from stream_client.consume.consumer import BaseConsumer, Messages
from stream_client.consume.page import ConsumerArguments, ConsumerOptions, with_options_shown
from stream_client.consume.readings import PartitionReading, ReadingLoop
from stream_client.errors import ClientError, LeaseLost
from stream_client.partitions import PartitionWatch
from stream_client.positions import check_keeps_positions, check_name
from stream_client.share.membership import LeaseMember
from stream_service.extensions import RichMessage


class SharedConsumer(BaseConsumer):
    """Iterates over the partitions that the node leases to this member of a consumer group. A context manager.

    The end of the block leaves the group. When the node wants a partition back for another member, the consumer saves
    its position and gives the partition back, between two messages. It continues with its other partitions. The members
    also share partitions that are added to the stream later, within some seconds.

    If a lease is lost, because this process was too slow or had no connection, the iterator raises LeaseLost. You can
    then continue the iteration. The blocking client renews leases only inside its calls. So with it, a lease is lost if
    the program processes one message for longer than a lease lasts, which is 10 s by default.
    """

    @with_options_shown
    def __init__(
        self, partitions: Sequence[StreamAdmin], membership: LeaseMember | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        """partitions: all partitions of the stream. membership: the name of the group, or a LeaseMember."""
        if isinstance(membership, str):
            member = LeaseMember(partitions[0], check_name(membership))
        else:
            member = check_keeps_positions(membership)
        super().__init__(partitions, member, ConsumerOptions(**options))
        self._session = partitions[0].session
        self._member = member
        self._stream_name = self._handles[0].name
        self._by_partition = {handle.partition: handle for handle in self._handles}
        self._fences: dict[int, int] = {}
        self._lost: set[int] = set()
        self._joined = False
        self._loop.watch = PartitionWatch(self._session, self._stream_name, len(self._by_partition), self._grow)

    async def __aenter__(self) -> Self:
        self._join()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await super().__aexit__(kind)
            if kind is None:
                await self._member.leave()
        finally:
            self._member.leave_nowait()

    @property
    def fences(self) -> dict[int, int]:
        """The fence of each lease, by partition number: a number that is higher for each later holder of the partition.
        Send it with each action that must not happen twice, such as a write to a database. The receiver can then refuse
        an action with a fence lower than one that it has seen."""
        return dict(self._fences)

    def is_held(self, reading: PartitionReading) -> bool:
        """Whether this member still has the lease under which it began to read this partition."""
        return self._member.find_fence(reading.partition) == self._fences.get(reading.partition)

    def __aiter__(self) -> SharedMessages:
        return self.messages()

    def messages(self, *, stop_at_end: bool = False) -> SharedMessages:
        """Returns an iterator over pairs of partition number and message, in order within each partition, to the end of
        the leased partitions (`stop_at_end`) or without end. It raises LeaseLost when a lease is lost. You can then
        continue it, or call this method again."""
        self._join()
        return SharedMessages(self, self._loop, stop_at_end)

    async def follow_leases(self) -> None:
        """Adapts to the current leases: gives back the partitions that the node wants back, and begins to read new
        ones. Raises LeaseLost if leases were lost since the last call."""
        # The next lines examine the leases. A change after this point must wake the reading loop again.
        self._loop.woken = False
        held, asked_back = self._member.check()
        # None of the next steps may read or save a partition whose lease is lost.
        self._drop_lost()
        returned = asked_back & self._fences.keys()
        if returned:
            try:
                await self._loop.save(returned)
            except ClientError as error:
                if not error.retriable:
                    raise
                # Without the save, the next member would process again the messages that this member has processed. So
                # this member keeps the partitions, and tries the save again when it next examines its leases.
                asked_back -= returned
            else:
                # The save took time, and more leases may have been lost meanwhile.
                self._drop_lost()
                for partition in returned & self._fences.keys():
                    self._drop(partition)
        for partition in asked_back:
            self._member.give_back(partition)
        await self._begin(sorted(held - asked_back - self._fences.keys()))
        # This is raised last, so that the program can continue the iteration.
        lost, self._lost = self._lost, set()
        if lost:
            raise LeaseLost(self._stream_name, lost)

    async def save(self, *, with_last: bool = False) -> None:
        """Saves the positions now, as `Consumer.save` does. Raises LeaseLost if a lease was lost."""
        await super().save(with_last=with_last)
        await self.follow_leases()

    async def _begin(self, partitions: Sequence[int]) -> None:
        fences = {partition: self._member.find_fence(partition) for partition in partitions}
        await self._loop.add([self._by_partition[partition] for partition in partitions])
        # Loading the positions took time. If a lease ended meanwhile, another member may have saved a later position.
        for partition, fence in fences.items():
            if fence is not None and self._member.find_fence(partition) == fence:
                self._fences[partition] = fence
            else:
                self._loop.drop(partition)

    def _grow(self, partitions: list[int]) -> None:
        """Reports to the node that this member knows more partitions, so that the node leases them, too."""
        for handle in self._session.core.find_handles(self._stream_name, partitions):
            self._by_partition[handle.partition] = handle
            self._handles.append(handle)
        self._member.grow(len(self._by_partition))

    def _join(self) -> None:
        if not self._joined:
            self._joined = True
            self._member.join(self._stream_name, len(self._by_partition), self._loop.wake)

    def _drop_lost(self) -> None:
        """Stops reading the partitions whose lease was lost since their reading began, and adds them to `_lost`."""
        find_fence = self._member.find_fence
        lost = {partition for partition, fence in self._fences.items() if find_fence(partition) != fence}
        for partition in lost:
            self._drop(partition)
        self._lost |= lost

    def _drop(self, partition: int) -> None:
        del self._fences[partition]
        self._loop.drop(partition)


class SharedMessages(Messages[tuple[int, RichMessage]]):
    """An iterator over the messages of the partitions leased to one member. It can be continued after LeaseLost."""

    def __init__(self, consumer: SharedConsumer, loop: ReadingLoop, stop_at_end: bool) -> None:
        super().__init__(loop, (), stop_at_end, PartitionReading.hand_out_named)
        self._consumer = consumer

    def _current(self) -> PartitionReading | None:
        """Does what the base class does, but counts no message as processed whose partition's lease is lost."""
        if self._loop.shell.is_blocking:
            self._loop.shell.send_lagging()
        reading, self._reading = self._reading, None
        current = self._loop.current
        # If the lease is lost, another member gets this message too. So this member must not count it as processed.
        if current is not None and self._consumer.is_held(current):
            self._loop.commit()
            # Most messages come from the current page. `woken` means that the leases must be examined first.
            if current is reading and reading.has_messages and not self._loop.woken:
                self._reading = reading
        return self._reading

    async def _find_reading(self) -> PartitionReading | None:
        """Waits until a leased partition has a message. Returns None at the end. Raises LeaseLost."""
        loop = self._loop
        if not self._begun:
            loop.begin()
            self._begun = True
        while not self._ended:
            # Without a partition there is no end either: the member may get its first lease later.
            await self._consumer.follow_leases()
            reading = await loop.next_reading(self._stop_at_end and bool(loop.readings))
            if reading is not None and self._consumer.is_held(reading):
                return reading
            self._ended = self._stop_at_end and bool(loop.readings) and loop.has_ended()
        return None
