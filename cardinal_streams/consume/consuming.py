"""The entry points of consumers: iterations over the updates of a chain, or over its complete blocks.

They run on any transport, under trio or asyncio. The program calls `done()` on each item after it has processed it.

    async with consume(application, transport, NodeCheckpoints(client, "indexer")) as updates:
        async for update in updates:
            …undo update.removed, do update.added…
            update.done()

A checkpoint is the state after the last item that was done. It is saved every `save_interval_s` seconds if items were
done meanwhile, and when the `async with` block ends without an exception. After a crash, the items that were done since
the last save are returned again. To process every update exactly once, an application either gives `consume` a
`chain_store` and `done` a function with its writes, or stores `updates.checkpoint()` in its own database, in the
transaction that applies the update."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec

from cardinal_streams.application import Application
from cardinal_streams.consume.checkpoints import CheckpointStore
from cardinal_streams.consume.consumption import Consumption, OnEvent
from cardinal_streams.errors import ChainStoreMismatch, CheckpointError
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import (
    ChainUpdate,
    Checkpoint,
    Completed,
    ConsumerStatistics,
    Gap,
    OpenReorg,
    ReorgStalled,
    Revert,
    Stalled,
    Start,
    UnorderedStatistics,
)
from cardinal_streams.machines.unordered_machine import UnorderedConsumer
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked
from cardinal_streams.transports.transport import Transport, reorg_topic, source_of, split_source
from stream_client import StreamRemade
from stream_client.errors import ClientError

if TYPE_CHECKING:
    from block_manager import Transactions
    from block_manager.transactions import Write
    from cardinal_streams.consume.chain_store import KeptChain

SAVE_INTERVAL_S = 1.0
REORG_TIMEOUT_S = 600.0
"""A reorg is given up if nothing came on its channel for this long. Blocks that come later are still weighed."""
REORG_CHECK_S = 5.0
STALL_REPORTS_S = 10.0
"""While the chain lacks a block, an event reports it at this interval."""
REORG_REPORTS_S = 30.0
"""While the channel of a reorg is silent, an event reports it at this interval."""


class Update:
    """One change of the chain: the application undoes the blocks in `removed`, then applies the blocks in `added`.

    Both lists are in ascending order of block numbers. If `reverted_to` is not None, the chain goes back to this block,
    because of a Reorg message or a reorg that was given up. Then `removed` has only the blocks that were still in
    memory, so the application must be able to return to that block by itself. With a chain store, `removed` has all
    removed blocks, back to the first block of the store."""

    __slots__ = ("_finish", "_removed", "event")

    def __init__(
        self, event: ChainUpdate | Revert, finish: Callable[[ChainUpdate | Revert, Write | None], None]
    ) -> None:
        self.event = event
        self._finish = finish
        self._removed: tuple[CompleteBatch, ...] | None = None

    @property
    def removed(self) -> tuple[CompleteBatch, ...]:
        return self.event.removed if self._removed is None else self._removed

    @property
    def added(self) -> tuple[CompleteBatch, ...]:
        return () if isinstance(self.event, Revert) else self.event.added

    @property
    def reverted_to(self) -> Revert | None:
        return self.event if isinstance(self.event, Revert) else None

    async def deliver(self, chain: KeptChain) -> None:
        """Adds the update to the chain store, once, before the application gets it."""
        if self._removed is None:
            self._removed = await chain.deliver(self.event)

    def done(self, write: Write | None = None) -> None:
        """Notes that the application has finished this update and all earlier ones. Raises ValueError if called
        twice.

        `write`: with a chain store, a function that gets the connection to the store's database, and writes the
        application's own changes for this update. It runs in a thread, inside the transaction that saves the update, so
        these changes are stored exactly once. It must neither commit nor roll back. If it raises an exception, the
        iteration ends with it, and nothing of that transaction is stored."""
        self._finish(self.event, write)


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
    """An iteration over the updates of the heaviest chain. During a reorg, the normal feed is not read. If the reorg's
    channel is silent, `ReorgStalled` is reported, and the reorg is given up after `reorg_timeout_s` seconds."""

    chain: KeptChain | None = None
    reorg_timeout_s = REORG_TIMEOUT_S
    _reorg: OpenReorg | None = None
    _reorg_began_s = _reorg_read_s = _reorg_reported_s = 0.0
    _stall: bytes | None = None
    _stall_began_s = _stall_reported_s = 0.0

    def reorg_age_s(self) -> float:
        """Returns for how long the reorg that is going on has lasted, in seconds; 0 if there is none."""
        return 0.0 if self._reorg is None else anyio.current_time() - self._reorg_began_s

    def stalled_s(self) -> float:
        """Returns for how many seconds the chain has lacked the same first block (see `gaps`), although all messages of
        the topics were read; 0 if no block is lacking."""
        return 0.0 if self._stall is None else anyio.current_time() - self._stall_began_s

    def gaps(self) -> tuple[Gap, ...]:
        """Returns the blocks that the chain lacks, and the missing messages of each block."""
        return self.machine.gaps()

    @property
    def tip(self) -> bytes | None:
        """The hash of the newest block in the chain store, None before the first one: after a restart, the last block
        that is finished for certain."""
        return self._chain().tip

    async def get(self, hash_: bytes) -> CompleteBatch:
        """Returns a block of the chain store. The store has the blocks of the chain; also blocks of other branches,
        while an unfinished update or an iteration needs them. Raises UnknownBlock and BlockStoreError
        (`block_manager`)."""
        return await self._chain().get(hash_)

    def branch(self, tip: bytes | None = None, *, exclude: bytes | None = None) -> AsyncGenerator[CompleteBatch, None]:
        """Iterates over the blocks of the chain store from `tip`, by default the newest one, to the first: newest
        first, without the blocks that are also on the branch of `exclude`. The blocks stay until the iteration ends,
        even if a reorg removes them meanwhile. Raises UnknownBlock and BlockStoreError (`block_manager`)."""
        return self._chain().branch(tip, exclude)

    def finish(self, event: ChainUpdate | Revert, write: Write | None) -> None:
        """Does the work of `Update.done`."""
        if write is not None:
            self._chain()
        self.machine.done(event)
        if self.chain is not None:
            self.chain.finish(event, write)
        self.finished(at_once=self.chain is not None and self.chain.is_full)

    def _chain(self) -> KeptChain:
        if self.chain is None:
            raise ValueError("there is no chain store; call `consume` with chain_store=")
        return self.chain

    def _item_of(self, event: object) -> Update | None:
        return Update(event, self.finish) if isinstance(event, ChainUpdate | Revert) else None

    async def _deliver(self, item: Update) -> None:
        if self.chain is not None:
            await item.deliver(self.chain)

    async def _do_when_idle(self) -> None:
        await self._look_at_reorg()
        if self._reorg is None and self._is_at_end():
            self._look_for_gaps()

    def _look_for_gaps(self) -> None:
        """Reports `Stalled` at intervals while the chain lacks the same block."""
        gaps = self.machine.gaps()
        first = gaps[0].hash if gaps else None
        now_s = anyio.current_time()
        # Another first gap is progress, so the clock begins anew.
        if first != self._stall:
            self._stall, self._stall_began_s, self._stall_reported_s = first, now_s, now_s
        if first is not None:
            if now_s - self._stall_reported_s >= STALL_REPORTS_S:
                self._stall_reported_s = now_s
                self.handle([Stalled(gaps, now_s - self._stall_began_s)])
            self._check_due_s = min(self._check_due_s, self._stall_reported_s + STALL_REPORTS_S)

    async def _look_at_reorg(self) -> None:
        before, self._reorg = self._reorg, self.machine.active_reorg
        if self._reorg is None:
            self._check_due_s = math.inf
            return
        now_s = anyio.current_time()
        # 1. The age counts from the beginning of the reorg, the silence from its last message.
        if before is None or before.hash != self._reorg.hash:
            self._reorg_began_s = now_s
        # While the application has too many unfinished updates, the channel is not read, so its silence does not count.
        if before != self._reorg or not self.machine.feeds.channels:
            self._reorg_read_s = self._reorg_reported_s = now_s
        # 2. Ask for the ends of the resting topics, so that the lags grow while the reorg lasts.
        if before is None or now_s >= self._check_due_s:
            # The receivers of the normal feed read nothing now, so they do not know how far its topics have grown.
            try:
                self._ends = await self._transport.ends(self._topics)
            except ClientError as error:
                if not error.retriable:
                    raise
                # The node is silent, not the channel, and the node may start again.
                self._reorg_read_s = self._reorg_reported_s = now_s
            self._check_due_s = now_s + min(REORG_CHECK_S, self.reorg_timeout_s)
        # 3. Report the silence, and end a reorg whose producer is gone: the normal feed must not rest for ever.
        idle_s = now_s - self._reorg_read_s
        is_given_up = idle_s >= self.reorg_timeout_s
        if is_given_up or now_s - self._reorg_reported_s >= REORG_REPORTS_S:
            self._reorg_reported_s = now_s
            self.handle([ReorgStalled(self._reorg.hash, self._reorg.number, idle_s, is_given_up)])
        if is_given_up:
            self.abandon_reorg(self._reorg.hash)

    def statistics(self) -> ConsumerStatistics:
        return self.machine.statistics()

    def abandon_reorg(self, ancestor: bytes) -> None:
        """Gives up a reorg that its producer will not complete; see `consumer_machine.ChainConsumer.abandon_reorg`."""
        self.handle(self.machine.abandon_reorg(ancestor))
        self._wake()


class Arrivals(Consumption[UnorderedConsumer, Arrival]):
    """An iteration over complete blocks, in the order in which they become complete."""

    def finish(self, event: Completed) -> None:
        """Does the work of `Arrival.done`."""
        self.machine.done(event)
        self.finished()

    def statistics(self) -> UnorderedStatistics:
        return self.machine.statistics()

    def _item_of(self, event: object) -> Arrival | None:
        return Arrival(event, self.finish) if isinstance(event, Completed) else None


@asynccontextmanager
async def consume(
    application: Application,
    transport: Transport,
    store: CheckpointStore | None = None,
    *,
    chain_store: str | os.PathLike[str] | Transactions | None = None,
    checkpoint: Checkpoint | None = None,
    start: Start | None = None,
    tracked: Tracked | None = None,
    wanted: Mapping[int, bytes] | None = None,
    stop_at_end: bool = False,
    save_interval_s: float = SAVE_INTERVAL_S,
    reorg_timeout_s: float = REORG_TIMEOUT_S,
    on_event: OnEvent | None = None,
) -> AsyncIterator[Updates]:
    """Iterates over the updates of the chain: endlessly, or up to the present end of the topics (`stop_at_end`).

    The iteration continues from `checkpoint`, or else from the checkpoint in `store`. Without a checkpoint it begins
    after the block `start`, which the application must have, together with all its ancestors. Without `start` it begins
    with the lowest block: of all complete blocks in the topics, or of the first `ConsumerLimits.held_max`. A block
    below it that is complete only later is reported (`LeftOut`). While `ConsumerLimits.unfinished_max` updates are not
    done, the iteration waits.

    `chain_store`: keeps the chain with all its blocks, in a folder or, by `block_manager.Transactions`, in an SQLite
    database that the program has opened. It replaces `store`: the checkpoint is saved in the same transaction as the
    blocks. Raises `StorageError` if it cannot be opened (another process has it open), `ChainStoreMismatch` if it does
    not fit, `BlockStoreError` (`block_manager`) if it cannot be read or written, and `StreamRemade` instead of the
    event.

    `wanted`: by block number, the only hash that is accepted for this number.
    `tracked`: the entries of blocks that are wanted. Only the topics that can have them are read.
    `reorg_timeout_s`: a reorg beyond the threshold is given up if its channel brings nothing for this many seconds.
    `save_interval_s`: the time between saves, in seconds.
    `on_event`: receives the events that are not updates, and a `StreamRemade` for each source that was deleted and made
    again since the checkpoint was saved. Then the iteration begins as without a checkpoint."""
    wants = application.tracked(tracked)
    topics = application.topics_of(wants)
    if chain_store is not None and (store is not None or checkpoint is not None):
        raise ValueError("a chain store has the checkpoint itself; leave out `store` and `checkpoint`")
    chain: KeptChain | None = None
    async with AsyncExitStack() as stack:
        if chain_store is not None:
            # The module is imported here, since consumers without a chain store need no database.
            from cardinal_streams.consume.chain_store import open_chain_store

            chain = await stack.enter_async_context(open_chain_store(chain_store, application, wants))
        store = store if chain is None else chain
        known = await _known(checkpoint, store, start, topics, transport, on_event, is_strict=chain is not None)
        machine = ChainConsumer(
            reorg_threshold=application.reorg_threshold,
            tracked=wants,
            checkpoint=known,
            wanted=wanted,
            limits=application.limits,
        )

        updates = Updates(machine, application, topics, transport, store, save_interval_s, on_event)
        updates.reorg_timeout_s, updates.chain = reorg_timeout_s, chain
        async with updates.running(known, wants, stop_at_end):
            yield updates


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
    """Iterates over complete blocks, also of forks, as soon as each is complete. Its arguments are as for `consume`."""
    wants = application.tracked(tracked)
    topics = application.topics_of(wants)
    known = await _known(checkpoint, store, None, topics, transport, on_event)
    machine = UnorderedConsumer(tracked=wants, checkpoint=known, limits=application.limits)
    arrivals = Arrivals(machine, application, topics, transport, store, save_interval_s, on_event)
    async with arrivals.running(known, wants, stop_at_end):
        yield arrivals


async def _known(
    checkpoint: Checkpoint | None,
    store: CheckpointStore | None,
    start: Start | None,
    topics: tuple[str, ...],
    transport: Transport,
    on_event: OnEvent | None,
    *,
    is_strict: bool = False,
) -> Checkpoint:
    """Returns the state with which a consumer continues. is_strict: raises an error if the streams of the checkpoint
    were made again, since the consumer cannot begin anew."""
    if checkpoint is None and store is not None:
        checkpoint = await store.load()
    # The streams of the checkpoint can have been deleted, and made again under the same names.
    created = await transport.created(topics)
    if checkpoint is None:
        return Checkpoint(start=start, created=created)
    # Another application's chain has a head that no block of this chain follows.
    read_topics = {split_source(source)[0] for source in checkpoint.read}
    if checkpoint.start is not None and read_topics and read_topics.isdisjoint(topics):
        raise CheckpointError(
            f"the checkpoint is of another application, which reads {', '.join(sorted(read_topics))}, and this one "
            f"reads {', '.join(topics)}; give this consumer a client id or a file of its own"
        )
    # A checkpoint without the time at which a source was created is from an older version of this program.
    remade = {
        source: offset
        for source, offset in checkpoint.position.items()
        if source in created and checkpoint.created.get(source, created[source]) != created[source]
    }
    if remade and is_strict:
        source, offset = min(remade.items())
        raise StreamRemade(*split_source(source), offset)
    if remade:
        # A block has messages in several topics, so nothing that was known before helps to read the new streams.
        for source, offset in remade.items():
            if on_event is not None:
                on_event(StreamRemade(*split_source(source), offset))
        return Checkpoint(start=start, created=created)
    # A reorg channel, too, can have been deleted and made again. Then it is read from its beginning.
    channels = {source_of(reorg_topic(topics[0], reorg.hash), 0): reorg for reorg in checkpoint.open_reorgs}
    now = await transport.created([split_source(source)[0] for source in channels])
    open_reorgs = tuple(
        msgspec.structs.replace(reorg, offset=0)
        if source in checkpoint.created and checkpoint.created[source] != now.get(source)
        else reorg
        for source, reorg in channels.items()
    )
    checkpoint = msgspec.structs.replace(checkpoint, created=created | now, open_reorgs=open_reorgs)
    if not checkpoint.read:
        return checkpoint
    # After a backup of the node was restored, its partitions may end before the offsets that were read earlier.
    # Messages that are stored after these ends are new, and must not count as read.
    ends = await transport.ends(topics)
    for source, end in checkpoint.read.items():
        # A transport that does not say when its topics were created shows a topic that was made again only by its end.
        if is_strict and source in ends and source not in created and ends[source] < end:
            raise ChainStoreMismatch(
                f"{source} was read up to offset {end}, and ends at {ends[source]}: it was made again"
            )
    read = {source: min(end, ends.get(source, end)) for source, end in checkpoint.read.items()}
    return msgspec.structs.replace(checkpoint, read=read)
