"""The entry points of consumers: iterations over the updates of a chain, or over its complete blocks.

They run on any transport, under trio or asyncio. The program calls `done()` on each item after it has processed the
item. The modules `consumer_machine` and `unordered_machine` decide which items there are.

    async with consume(application, transport, NodeCheckpoints(client, "indexer")) as updates:
        async for update in updates:
            …undo update.removed, do update.added…
            update.done()

A checkpoint is the state after the last item that was done. If items were done since the last save, the iteration saves
a checkpoint every `save_interval_s` seconds, and when the `async with` block ends without an exception. After a crash,
the items that were done since the last save are returned again. An application can process every update exactly once:
it stores `updates.checkpoint()` in its own database, in the transaction that applies the update.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

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
from stream_client.shell.background import background_tasks

SAVE_INTERVAL_S = 1.0


class Update:
    """One change of the chain: the application undoes the blocks in `removed`, then applies the blocks in `added`.

    Both lists are in ascending order of block numbers. `reverted_to` is None in most updates. Otherwise the chain goes
    back to this block, because of a Reorg message or a reorg that was given up. Then `removed` has only the blocks that
    the consumer still had in memory, so the application must be able to return to that block by itself.
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
        """Notes that the application has finished this update and all earlier ones.

        Raises ValueError at a second call.
        """
        self._finish(self.event)


class Arrival:
    """A complete block, either of the heaviest chain or of a fork."""

    __slots__ = ("_finish", "event")

    def __init__(self, event: Completed, finish: Callable[[Completed], None]) -> None:
        self.event = event
        self._finish = finish

    @property
    def batch(self) -> CompleteBatch:
        return self.event.batch

    def done(self) -> None:
        """Notes that the application has finished this block. Raises ValueError at a second call."""
        self._finish(self.event)


class Updates(Consumption[ChainConsumer, Update]):
    """An iteration over the updates of the heaviest chain, in order."""

    def statistics(self) -> ConsumerStatistics:
        return self.machine.statistics()

    def abandon_reorg(self, ancestor: bytes) -> None:
        """Gives up a reorg that its producer will not complete; see `consumer_machine.ChainConsumer.abandon_reorg`."""
        self.handle(self.machine.abandon_reorg(ancestor))
        self._feeds.wake()


class Arrivals(Consumption[UnorderedConsumer, Arrival]):
    """An iteration over complete blocks, in the order in which they become complete."""

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
    """Iterates over the updates of the chain: endlessly, or up to the present end of the topics (`stop_at_end`).

    The iteration continues from `checkpoint`, or else from the checkpoint in `store`. Without a checkpoint it begins
    after the block `start`, which the application must have, together with all its ancestors. Without `start` it begins
    with the first block that arrives.

    `wanted`: by block number, the only hash that is accepted for this number.
    `tracked`: the entries of blocks that are wanted.
    `save_interval_s`: the time between saves, in seconds.
    `on_event`: receives the events that are not updates.

    While `ConsumerLimits.unfinished_max` updates are not done, the iteration waits until the program calls `done`.
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
    """Iterates over complete blocks, including blocks of forks, as soon as each block is complete.

    The arguments have the same meaning as those of `consume`.
    """
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
    # After a backup of the node was restored, its partitions may end before the offsets that were read earlier.
    # Messages that are stored after these ends are new, and must not count as read.
    ends = await transport.ends(application.topics)
    read = {source: min(end, ends.get(source, end)) for source, end in checkpoint.read.items()}
    return msgspec.structs.replace(checkpoint, read=read)


@asynccontextmanager
async def _feed_set(transport: Transport, stop_at_end: bool) -> AsyncIterator[FeedSet]:
    """Makes a set of feeds (subscriptions). The tasks that read them end with the `async with` block."""
    async with background_tasks() as tasks:
        yield FeedSet(tasks, partial(transport.subscribe, stop_at_end=stop_at_end))
