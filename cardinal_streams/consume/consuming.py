"""Consumers as a program uses them: iterations over the updates of a chain, or over its complete blocks, on any
transport and under trio or asyncio. The program calls `done()` on each item when it has processed the item. The
machines (`consumer_machine`, `unordered_machine`) decide which items there are.

    async with consume(application, transport, NodeCheckpoints(client, "indexer")) as updates:
        async for update in updates:
            …undo update.removed, do update.added…
            update.done()

The store keeps a checkpoint behind the last item that is done: the iteration saves one every `save_interval_s`, and one
when the `async with` block ends without an exception. After a crash, items that were done since the last save come
again. An application that stores `updates.checkpoint()` in its own database, in the transaction that applies the
update, processes every update exactly once.
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
    """One change of the chain. The application first undoes the blocks in `removed`, then applies those in `added`;
    both lists ascend by number.

    `reverted_to`: a Reorg message said that the chain ends at this block. Then `removed` lists only the blocks that the
    consumer still held: the application must be able to return to that block by itself.
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
    """A complete block, of the heaviest chain or of a fork."""

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
    """An iteration over the updates of the heaviest chain, in order."""

    def statistics(self) -> ConsumerStatistics:
        return self.machine.statistics()

    def abandon_reorg(self, ancestor: bytes) -> None:
        """Gives up a reorg whose producer will not go on; see `consumer_machine.ChainConsumer.abandon_reorg`."""
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
    """Iterate over the updates of the chain, endlessly, or up to the present end of the topics (`stop_at_end`).

    The iteration begins at the first of these that is given: `checkpoint`; the checkpoint in `store`; behind the block
    `start`, which the application has together with all blocks below it; the first block that arrives. `wanted` maps a
    block number to the only hash that is accepted for it. When `ConsumerLimits.unfinished_max` updates are not done,
    the iteration waits until the program calls `done`.
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
    """Iterate over complete blocks, those of forks too, as soon as they are complete. The arguments are those of
    `consume`."""
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
    # When a backup of the node was restored, its partitions may end before the offsets that were read earlier. What is
    # stored behind those ends is new, so the consumer must not take it for messages that it has read.
    ends = await transport.ends(application.topics)
    read = {source: min(end, ends.get(source, end)) for source, end in checkpoint.read.items()}
    return msgspec.structs.replace(checkpoint, read=read)


@asynccontextmanager
async def _feed_set(transport: Transport, stop_at_end: bool) -> AsyncIterator[FeedSet]:
    """A set of feeds. Their tasks end with the `async with` block."""
    async with background_tasks() as tasks:
        yield FeedSet(tasks, partial(transport.subscribe, stop_at_end=stop_at_end))
