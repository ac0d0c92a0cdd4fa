"""A consumer that shares the partitions of a stream with others of its kind. Who has which, its membership tells.

Membership is somebody else's business: `stream_client.share.leases.LeaseMember` keeps it by leases with fences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, Unpack

from stream_client.consume.consumer import BaseConsumer
from stream_client.consume.consumption import (
    ConsumerArguments,
    ConsumerOptions,
    Consumption,
    Part,
    Positions,
    with_options_shown,
)
from stream_client.errors import ClientError, LeaseLost
from stream_client.positions.named import to_membership
from stream_service.extensions import RichMessage

if TYPE_CHECKING:
    from stream_client.streams import Stream


class Membership(Positions, Protocol):
    """One member of those that share a stream. What it saves is refused once its lease of that partition is over."""

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None:
        """Begin to ask for partitions, and keep what is got. on_change: called when `check` has news."""
        ...

    def check(self) -> tuple[set[int], set[int]]:
        """The partitions held now, and those of them that are asked back for others. Raises what ended membership."""
        ...

    def find_fence(self, partition: int) -> int | None:
        """The fence of the lease that is held now, by this process's clock; None where there is none."""
        ...

    def give_back(self, partition: int) -> None:
        """Somebody else may have it now."""
        ...

    async def leave(self) -> None:
        """Give everything back and ask for no more. Safe to repeat."""
        ...

    def leave_nowait(self) -> None:
        """The same without waiting; where it does not arrive, the leases run out."""
        ...


class SharedConsumer(BaseConsumer):
    """Iterates over the partitions that this member holds at the moment. A context manager: it leaves at the end.

    A partition that is asked back is saved and given up between two messages, without stopping the others. One whose
    lease is lost (this process was too slow, or cut off) raises LeaseLost inside the iterator, which may then be taken
    up again.
    """

    @with_options_shown
    def __init__(
        self, partitions: Sequence[Stream], membership: Membership | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        """partitions: all of the stream, which has lost none. membership: or the name of the group."""
        membership = to_membership(partitions[0].session, membership)
        super().__init__(partitions, membership, ConsumerOptions(**options))
        self._stream_name = partitions[0].name
        self._by_partition = {stream.partition: stream.handle for stream in partitions}
        self._membership = membership
        self._fences: dict[int, int] = {}
        self._lost: set[int] = set()
        self._joined = False

    async def __aenter__(self) -> Self:
        self._join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.save(with_last=True)
                await self._membership.leave()
            else:
                self._consumption.save_nowait()
        finally:
            self._membership.leave_nowait()
            self._consumption.stop()

    def __aiter__(self) -> SharedMessages:
        return self.messages()

    @property
    def fences(self) -> dict[int, int]:
        """By partition, the fence under which its messages are handed out. Pass it to what must not be done twice."""
        return dict(self._fences)

    def messages(self, *, stop_at_end: bool = False) -> SharedMessages:
        """Partition and message, in order within each; for ever, or until the partitions held have no more.

        Raises LeaseLost, and may then be called again, or gone on with.
        """
        self._join()
        return SharedMessages(self, self._consumption, stop_at_end)

    def is_held(self, part: Part) -> bool:
        """Whether the lease under which the part is read is held still."""
        return self._membership.find_fence(part.partition) == self._fences.get(part.partition)

    async def follow_leases(self) -> None:
        """Give back what is asked back, begin what has been got. Raises LeaseLost for what is gone."""
        self._consumption.woken = False
        held, asked_back = self._membership.check()
        self._drop_lost()
        returned = asked_back & self._fences.keys()
        if returned and not await self._has_saved(returned):
            # Kept meanwhile: who has it next would process again what this one has done.
            asked_back -= returned
        elif returned:
            self._drop_lost()
            for partition in returned & self._fences.keys():
                self._drop(partition)
        for partition in asked_back:
            self._membership.give_back(partition)
        await self._begin(sorted(held - asked_back - self._fences.keys()))
        lost, self._lost = self._lost, set()
        if lost:
            raise LeaseLost(self._stream_name, lost)

    async def save(self, *, with_last: bool = False) -> None:
        """Save the positions now; they are kept when this returns. with_last: as `Consumer.save`. Raises LeaseLost."""
        await super().save(with_last=with_last)
        await self.follow_leases()

    def _join(self) -> None:
        if not self._joined:
            self._joined = True
            self._membership.join(self._stream_name, len(self._by_partition), self._consumption.wake)

    async def _has_saved(self, partitions: Collection[int]) -> bool:
        """Save these positions; False where that failed and may go better later. Raises any other error."""
        try:
            await self._consumption.save(partitions)
        except ClientError as error:
            if not error.retriable:
                raise
            return False
        return True

    def _drop_lost(self) -> None:
        """Read no more of what is no longer held under the fence that it was begun with, and note that it is lost."""
        find_fence = self._membership.find_fence
        lost = {partition for partition, fence in self._fences.items() if find_fence(partition) != fence}
        for partition in lost:
            self._drop(partition)
        self._lost |= lost

    async def _begin(self, partitions: Sequence[int]) -> None:
        """Read these too, each from where the one who had it before saved."""
        fences = {partition: self._membership.find_fence(partition) for partition in partitions}
        await self._consumption.add([self._by_partition[partition] for partition in partitions])
        for partition, fence in fences.items():
            if fence is not None and self._membership.find_fence(partition) == fence:
                self._fences[partition] = fence
            else:
                self._consumption.drop(partition)

    def _drop(self, partition: int) -> None:
        del self._fences[partition]
        self._consumption.drop(partition)


class SharedMessages:
    """An iteration over what one member holds. It may be left at any message, and goes on behind a LeaseLost."""

    def __init__(self, consumer: SharedConsumer, consumption: Consumption, stop_at_end: bool) -> None:
        self._consumer = consumer
        self._consumption = consumption
        self._stop_at_end = stop_at_end
        self._part: Part | None = None
        self._begun = self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, RichMessage]:
        """The next message. What has been handed out before is processed by that, if its lease is held still."""
        part, self._part = self._part, None
        current = self._consumption.current
        if current is not None and self._consumer.is_held(current):
            self._consumption.commit()
            if current is part and part.has_messages and not self._consumption.woken:
                self._part = part
                return part.hand_out_named()
        self._part = part = await self._find_part()
        return part.hand_out_named()

    async def aclose(self) -> None:
        """There is nothing to close; for `contextlib.aclosing`."""

    async def _find_part(self) -> Part:
        """The part that has the next message, under a lease that is held. Raises LeaseLost, StopAsyncIteration."""
        consumption = self._consumption
        if not self._begun:
            consumption.begin()
            self._begun = True
        while not self._ended:
            await self._consumer.follow_leases()
            part = await consumption.next_part(self._stop_at_end and bool(consumption.parts))
            if part is not None and self._consumer.is_held(part):
                return part
            self._ended = self._stop_at_end and bool(consumption.parts) and consumption.has_ended()
        raise StopAsyncIteration
