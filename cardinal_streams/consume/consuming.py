"""Consumers as a program uses them: an iteration over what happens, each item with `done()`, over any transport and
under trio or asyncio. What happens is decided by the machines (`consumer_machine`, `unordered_machine`).

    async with consume(application, transport, NodeCheckpoints(client, "indexer")) as updates:
        async for update in updates:
            …undo update.removed, do update.added…
            update.done()

The position is saved up to what is done: every `save_interval_s` while the iteration goes on, and when the block ends
without an exception. After a crash, what was done since the last save comes again. An application that keeps
`updates.checkpoint()` in its own database, in one transaction with what it does, processes everything once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio
import msgspec

from cardinal_streams.application import Application
from cardinal_streams.consume.checkpoints import CheckpointStore
from cardinal_streams.consume.consumption import Consumption, OnEvent
from cardinal_streams.machines.chain_events import ChainUpdate, Revert, Start
from cardinal_streams.machines.consumer_events import Checkpoint, ConsumerStatistics, UnorderedStatistics
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.reassembly_events import Completed
from cardinal_streams.machines.unordered_machine import UnorderedConsumer
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from cardinal_streams.transports.feeds import FeedSet
from cardinal_streams.transports.transport import Transport

SAVE_INTERVAL_S = 1.0


class Update:
    """How the chain changes: first `removed` is undone, then `added` is done, both in ascending order.

    `reverted_to`: on the word of a Reorg message the chain ends at that block now. Then `removed` is only what was
    still held: the application has to be able to return to that block by itself.
    """

    __slots__ = ("_finish", "event")

    def __init__(self, event: ChainUpdate | Revert, finish: Callable[[ChainUpdate | Revert], None]) -> None:
        self.event = event
        self._finish = finish

    @property
    def removed(self) -> tuple[CompleteBatch, ...]:
        return self.event.removed

    @property
    def added(self) -> tuple[CompleteBatch, ...]:
        return () if isinstance(self.event, Revert) else self.event.added

    @property
    def reverted_to(self) -> Revert | None:
        return self.event if isinstance(self.event, Revert) else None

    def done(self) -> None:
        """The application has finished this update and all before it. Raises ValueError the second time."""
        self._finish(self.event)


class Arrival:
    """A complete block, wherever it belongs."""

    __slots__ = ("_finish", "event")

    def __init__(self, event: Completed, finish: Callable[[Completed], None]) -> None:
        self.event = event
        self._finish = finish

    @property
    def batch(self) -> CompleteBatch:
        return self.event.batch

    def done(self) -> None:
        """The application has finished this block. Raises ValueError the second time."""
        self._finish(self.event)


class Updates(Consumption[ChainConsumer, Update]):
    """The updates of the heaviest chain, in order."""

    def statistics(self) -> ConsumerStatistics:
        return self.machine.statistics()

    def abandon_reorg(self, ancestor: bytes) -> None:
        """Gives up a reorg whose producer will not go on; see `consumer_machine.ChainConsumer.abandon_reorg`."""
        self.handle(self.machine.abandon_reorg(ancestor))
        self._feeds.wake()


class Arrivals(Consumption[UnorderedConsumer, Arrival]):
    """Complete blocks as they come."""

    def statistics(self) -> UnorderedStatistics:
        return self.machine.statistics()


@asynccontextmanager
async def consume(
    application: Application,
    transport: Transport,
    store: CheckpointStore | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    start: Start | None = None,
    tracked: Tracked | None = None,
    wanted: Mapping[int, bytes] | None = None,
    stop_at_end: bool = False,
    save_interval_s: float = SAVE_INTERVAL_S,
    on_event: OnEvent | None = None,
) -> AsyncIterator[Updates]:
    """Iterate over the updates of the chain, for ever or up to what is there now (`stop_at_end`).

    It goes on at `checkpoint`, else where `store` says, else after the block `start`, which the application has with
    all below it; without that it begins with the first block that arrives, whichever that is. `wanted` maps numbers
    to the only hash that is accepted there. Once `ConsumerLimits.unfinished_max` updates are not done, the
    iteration waits for `done`.
    """
    known = await _known(checkpoint, store, start, application, transport)
    machine = ChainConsumer(
        reorg_threshold=application.reorg_threshold,
        tracked=tracked or application.tracked(),
        checkpoint=known,
        wanted=wanted,
        limits=application.limits,
    )

    def finish(event: ChainUpdate | Revert) -> None:
        machine.done(event)
        updates.finished()

    def make(event: object) -> Update | None:
        return Update(event, finish) if isinstance(event, ChainUpdate | Revert) else None

    async with _feed_set(transport, stop_at_end) as feeds:
        updates = Updates(machine, application, feeds, store, make, save_interval_s, on_event)
        await updates.begin(transport, known)
        yield updates
        await updates.save()


@asynccontextmanager
async def consume_unordered(
    application: Application,
    transport: Transport,
    store: CheckpointStore | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    tracked: Tracked | None = None,
    stop_at_end: bool = False,
    save_interval_s: float = SAVE_INTERVAL_S,
    on_event: OnEvent | None = None,
) -> AsyncIterator[Arrivals]:
    """Iterate over complete blocks as they come, forks and all. The rest as `consume`."""
    known = await _known(checkpoint, store, None, application, transport)
    machine = UnorderedConsumer(tracked=tracked or application.tracked(), checkpoint=known, limits=application.limits)

    def finish(event: Completed) -> None:
        machine.done(event)
        arrivals.finished()

    def make(event: object) -> Arrival | None:
        return Arrival(event, finish) if isinstance(event, Completed) else None

    async with _feed_set(transport, stop_at_end) as feeds:
        arrivals = Arrivals(machine, application, feeds, store, make, save_interval_s, on_event)
        await arrivals.begin(transport, known)
        yield arrivals
        await arrivals.save()


async def _known(
    checkpoint: Checkpoint | None,
    store: CheckpointStore | None,
    start: Start | None,
    application: Application,
    transport: Transport,
) -> Checkpoint:
    if checkpoint is None and store is not None:
        checkpoint = await store.load()
    if checkpoint is None:
        return Checkpoint(start=start)
    if not checkpoint.read:
        return checkpoint
    # Where a backup was put back less is there than was read before, and what will come is new.
    ends = await transport.ends(application.topics)
    read = {source: min(end, ends.get(source, end)) for source, end in checkpoint.read.items()}
    return msgspec.structs.replace(checkpoint, read=read)


@asynccontextmanager
async def _feed_set(transport: Transport, stop_at_end: bool) -> AsyncIterator[FeedSet]:
    """Feeds whose tasks end with the block."""
    body_error: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield FeedSet(tasks, partial(transport.subscribe, stop_at_end=stop_at_end))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            # Raised behind the task group, so that it leaves the block as it is and not as a group of one.
            body_error = error
        finally:
            tasks.cancel_scope.cancel()
    if body_error is not None:
        raise body_error
