"""Followers and consumers of the blocking client: what `follower`, `consumer` and `shared` do, without `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, Unpack

from stream_client import streams as async_form
from stream_client.consume import consumer as consumers
from stream_client.consume import follower as followers
from stream_client.consume.consumption import ConsumerArguments, with_options_shown
from stream_client.positions.named import check_keeps_positions
from stream_client.shell.blocking_shell import BlockingShell
from stream_client.shell.driving import Driven, drive
from stream_client.shell.session import Session
from stream_service.extensions import RichMessage


class Positions(Protocol):
    """Keeps the next index to read of each partition; `stream_client.blocking.positions.SavedIndexes` does."""

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none."""
        ...

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition; they are kept when this returns."""
        ...

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting; lost where there is no connection just now."""
        ...


class Membership(Positions, Protocol):
    """As `shared.Membership`; `stream_client.blocking.positions.LeaseMember` is one."""

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None: ...

    def check(self) -> tuple[set[int], set[int]]: ...

    def find_fence(self, partition: int) -> int | None: ...

    def give_back(self, partition: int) -> None: ...

    def leave(self) -> None: ...

    def leave_nowait(self) -> None: ...


P = TypeVar("P", bound=Positions)
T = TypeVar("T")


class _AsyncPositions(Generic[P]):
    """Positions as the consumers call them."""

    def __init__(self, positions: P) -> None:
        self._positions = positions

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        return self._positions.load(stream_name, partitions)

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        self._positions.save(stream_name, indexes)

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        self._positions.save_nowait(stream_name, indexes)


class _AsyncMembership(_AsyncPositions[Membership]):
    """A membership as the shared consumer calls it."""

    def join(self, stream_name: str, partitions: int, on_change: Callable[[], None]) -> None:
        self._positions.join(stream_name, partitions, on_change)

    def check(self) -> tuple[set[int], set[int]]:
        return self._positions.check()

    def find_fence(self, partition: int) -> int | None:
        return self._positions.find_fence(partition)

    def give_back(self, partition: int) -> None:
        self._positions.give_back(partition)

    async def leave(self) -> None:
        self._positions.leave()

    def leave_nowait(self) -> None:
        self._positions.leave_nowait()


def _positions(positions: Positions | str) -> _AsyncPositions[Positions] | str:
    return positions if isinstance(positions, str) else _AsyncPositions(check_keeps_positions(positions))


def _membership(membership: Membership | str) -> _AsyncMembership | str:
    return membership if isinstance(membership, str) else _AsyncMembership(check_keeps_positions(membership))


class Follower:
    """As `stream_client.Follower`."""

    def __init__(self, inner: followers.Follower) -> None:
        self._inner = inner
        self._items: Driven[RichMessage] = Driven(inner)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RichMessage:
        """The next message, waited for where the stream is followed for ever."""
        return next(self._items)

    @property
    def next_index(self) -> int | None:
        """The index behind the page at hand; None before the first."""
        return self._inner.next_index

    @property
    def holes(self) -> int:
        """How many indexes were missing between messages (retention, or deletion)."""
        return self._inner.holes

    def next_page(self) -> Sequence[RichMessage]:
        """The messages not given yet, at least one; none at the end only. Raises RequestTimeout where it is to end."""
        return drive(self._inner.next_page())

    def stop(self) -> None:
        """No more is wanted; what is on its way is dropped."""
        self._inner.stop()


class _BaseConsumer:
    """What all three consumers have in common."""

    def __init__(self, inner: consumers.BaseConsumer, session: Session) -> None:
        assert isinstance(session.shell, BlockingShell)
        self._base = inner
        self._shell = session.shell

    def __repr__(self) -> str:
        return repr(self._base)

    def __enter__(self) -> Self:
        drive(self._base.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self._base.__aexit__(kind, error, traceback))

    @property
    def holes(self) -> int:
        """How many indexes were missing between messages (retention, or deletion), since the start."""
        return self._base.holes

    @property
    def processed(self) -> int:
        """How many messages have been processed since the start."""
        return self._base.processed

    def save(self, *, with_last: bool = False) -> None:
        """Save the position now, if it has moved; it is kept when this returns.

        with_last: the message handed out last counts as processed too.
        """
        drive(self._base.save(with_last=with_last))

    def _iterate(self, items: AsyncIterator[T]) -> Driven[T]:
        """Saves go out and leases are renewed between messages too, however many are at hand."""
        return Driven(items, self._shell.send_lagging)


class Consumer(_BaseConsumer):
    """As `stream_client.Consumer`. A context manager, which saves how far it came."""

    @with_options_shown
    def __init__(
        self, stream: async_form.Stream, positions: Positions | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        self._inner = consumers.Consumer(stream, _positions(positions), **options)
        super().__init__(self._inner, stream.session)

    def __iter__(self) -> Driven[RichMessage]:
        return self.messages()

    @property
    def next_index(self) -> int | None:
        """The next index to read, everything below is processed; None before the first message is asked for."""
        return self._inner.next_index

    def messages(self, *, stop_at_end: bool = False) -> Driven[RichMessage]:
        """Messages in order, for ever, or until the stream has no more (`stop_at_end`). May be taken up again."""
        return self._iterate(self._inner.messages(stop_at_end=stop_at_end))


class PartitionedConsumer(_BaseConsumer):
    """As `stream_client.PartitionedConsumer`. A context manager, which saves how far it came."""

    @with_options_shown
    def __init__(
        self,
        stream: async_form.PartitionedStream,
        positions: Positions | str,
        *,
        partitions: Sequence[int] | None = None,
        **options: Unpack[ConsumerArguments],
    ) -> None:
        self._inner = stream.consumer(_positions(positions), partitions=partitions, **options)
        super().__init__(self._inner, stream.partitions[0].session)

    def __iter__(self) -> Driven[tuple[int, RichMessage]]:
        return self.messages()

    @property
    def next_indexes(self) -> dict[int, int]:
        """By partition, the next index to read; empty before the first message is asked for."""
        return self._inner.next_indexes

    def messages(self, *, stop_at_end: bool = False) -> Driven[tuple[int, RichMessage]]:
        """Partition and message, in order within each partition, for ever, or until no partition has more."""
        return self._iterate(self._inner.messages(stop_at_end=stop_at_end))


class SharedConsumer(_BaseConsumer):
    """As `stream_client.SharedConsumer`. Leases are renewed inside its calls only: a message that takes longer
    to process than a lease lasts (10 s by default) costs the lease.
    """

    @with_options_shown
    def __init__(
        self,
        stream: async_form.PartitionedStream,
        membership: Membership | str,
        **options: Unpack[ConsumerArguments],
    ) -> None:
        self._inner = stream.shared_consumer(_membership(membership), **options)
        super().__init__(self._inner, stream.partitions[0].session)

    def __iter__(self) -> Driven[tuple[int, RichMessage]]:
        return self.messages()

    @property
    def fences(self) -> dict[int, int]:
        """By partition, the fence under which its messages are handed out. Pass it to what must not be done twice."""
        return self._inner.fences

    def messages(self, *, stop_at_end: bool = False) -> Driven[tuple[int, RichMessage]]:
        """Partition and message, in order within each; for ever, or until the partitions held have no more.

        Raises LeaseLost, and may then be called again.
        """
        return self._iterate(self._inner.messages(stop_at_end=stop_at_end))
