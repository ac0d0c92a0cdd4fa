"""The stored blocks of a node, for use in the trio thread: which blocks are stored, and how to read and add blocks.

The store survives the crash of a worker that uses it. Blocks are stored in the order of the calls, each in its own
transaction. After a failure at the end of the chain, no higher block is stored, so that no gap arises there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import structlog

from block_node.persist.chain_log import (
    ChainLog,
    NewBlock,
    PredecessorMissing,
    ReadBlocks,
    StageParts,
    StoreBlock,
    StoredBlockDiffers,
    StoredChain,
    read_chain,
    recount,
)
from block_node.persist.ranges import BlockRanges
from block_node.persist.schema import BlockPlace, mark_damaged
from stream_storage.contract import Do, DoLittle, Session, StreamRecord, ignore_done
from stream_storage.errors import CommitUnsettled, DatabaseCorrupt, DatabaseLost, DiskFull, StorageClosed, StorageError
from stream_storage.runner import Runner

EVICT_BLOCKS = 16
"""The most blocks that one transaction deletes. New blocks can be stored between two of these transactions."""

logger = structlog.get_logger(__name__)


class BlockRetention(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the stored blocks; None means no limit. The lowest blocks are deleted, but never the highest."""

    blocks: int | None = None
    size_bytes: int | None = None

    def is_exceeded(self, blocks: int, size_bytes: int) -> bool:
        return blocks > 1 and (
            (self.blocks is not None and blocks > self.blocks)
            or (self.size_bytes is not None and size_bytes > self.size_bytes)
        )


class BlockStoreStatistics(msgspec.Struct, frozen=True):
    """The statistics of the stored blocks. The fields `stored`, `evicted` (by retention), `mended` (in place of a
    damaged block) and `failed` count blocks since the start of the node."""

    blocks: int
    size_bytes: int
    first_block: int | None
    last_block: int | None
    damaged: int
    stored: int
    evicted: int
    mended: int
    failed: int


class ChainStore:
    """The block store of one chain.

    - available: the blocks that can be read. ever_stored: these, and the blocks that retention has deleted.
    - damaged: the stored blocks whose bytes a reader found damaged or gone. They are missing until they come again.
    - newest: the location of the highest available or damaged block. verifier_state: that of the last stored block.
    - is_open: whether it is known which blocks are stored. is_closed: whether another node writes the chain now.
    - refusal: why no block can be stored now. None if blocks can be stored.
    - `_refused_from`: the lowest block at the end of the chain that could not be stored. Higher blocks are refused
      until this block is stored, or the node gives all of them up.

    Invariant: `available` is the state after the last finished operation. It is empty until `is_open`.
    """

    def __init__(
        self,
        storage: Runner,
        *,
        now_us: Callable[[], int],
        chain: str = "blocks",
        retention: BlockRetention | None = None,
        on_stream_changed: Callable[[StreamRecord], None] = lambda stream: None,
    ) -> None:
        self._storage = storage
        self._now_us = now_us
        self.chain = chain
        self._log = ChainLog(chain)
        self.retention = retention if retention is not None else BlockRetention()
        self._on_stream_changed = on_stream_changed
        self._when_open: list[Callable[[], None]] = []
        self._evicting = False
        self._blocks = self._size_bytes = 0
        self._stored = self._evicted = self._mended = self._failed = 0
        self.on_damaged: Callable[[int], None] = lambda number: None
        self._under_way: Counter[int] = Counter()
        self._refused_from: int | None = None
        self.refusal: str | None = None
        self.is_open = self.is_closed = False
        self.available = BlockRanges()
        self.ever_stored = BlockRanges()
        self.damaged = BlockRanges()
        self.newest: BlockPlace | None = None
        # The highest stored block, even if another program has deleted it since: blocks up to it end no chain.
        self._top = -1
        self.verifier_state = b""

    def when_open(self, function: Callable[[], None]) -> None:
        """Calls a function once, as soon as it is known which blocks are stored."""
        if self.is_open:
            function()
        else:
            self._when_open.append(function)

    def open(self, on_done: Callable[[StorageError | None], None]) -> None:
        """Reads the state of the stored blocks, and deletes staged parts. Safe to repeat."""

        def opened(operation: Do[tuple[StreamRecord | None, StoredChain]]) -> None:
            if operation.error is None:
                stream, state = operation.result
                self._learn(state)
                self._note_stream(stream)
            on_done(operation.error)
            # Callers of `when_open` come last: they may use the state and the stream at once.
            if self.is_open:
                waiting, self._when_open = self._when_open, []
                for function in waiting:
                    function()

        self._storage.submit_write(Do(self._log.open, opened))

    def close(self) -> None:
        """Begins no more writes by itself, because another node writes the chain now. Submitted writes still happen."""
        self.is_closed = True

    def look_again(self, on_done: Callable[[StorageError | None], None]) -> None:
        """Compares the known state with the disk. Blocks that another program has deleted are no longer `available`."""
        before = self.available.copy()

        def counted(operation: Do[StoredChain | None]) -> None:
            if operation.error is None and operation.result is not None:
                logger.warning("blocks_vanished", blocks=self.available.count() - operation.result.available.count())
                self._learn(operation.result)
            on_done(operation.error)

        # Reading is cheap and blocks nothing; the totals are corrected in a writing transaction only if blocks have
        # gone.
        def read(operation: Do[StoredChain | None]) -> None:
            if operation.error is not None:
                on_done(operation.error)
                return
            there = BlockRanges() if operation.result is None else operation.result.available
            # A block that retention has deleted since is no longer in `available`, so it does not count.
            gone = [hole for each in before for hole in there.missing(*each)]
            if not any(first in self.available for first, _ in gone):
                on_done(None)
                return
            try:
                self._storage.submit_write(Do(partial(recount, log=self._log), counted))
            except StorageClosed as error:
                on_done(error)

        try:
            self._storage.submit_read(Do(partial(read_chain, log=self._log), read))
        except StorageClosed as error:
            on_done(error)

    def kept_from(self, last: int) -> int:
        """Returns the number below which blocks need not be fetched, because retention has deleted or would delete
        them."""
        # Blocks that retention has deleted are not fetched again.
        evicted = self.ever_stored.copy()
        for each in self.available:
            evicted.discard(*each)
        lowest = 0 if evicted.last is None else evicted.last + 1
        # A limit in bytes cannot tell how many blocks fit, so at that limit nothing below the first block is fetched.
        limits = self.retention
        if limits.blocks is not None:
            lowest = max(lowest, last - limits.blocks + 1)
        if limits.size_bytes is not None and self._size_bytes >= limits.size_bytes:
            lowest = max(lowest, self.available.first or 0)
        return lowest

    def store(self, block: NewBlock, on_done: Callable[[StorageError | None], None]) -> None:
        """Stores a verified block. Calls `on_done` when the block is synced to disk, or with an error."""
        assert self.is_open, "nothing is stored before it is known what is"
        # A block above a failed one would leave a gap in the chain.
        number, behind = block.number, block.number - 1
        if self._refused_from is not None and number > self._refused_from:
            self._discard(block)
            on_done(PredecessorMissing(number, self._refused_from))
            return
        # The disk is full, or about to be: the block counts as failed, so that no higher one is stored.
        if self.refusal is not None:
            error = DiskFull(self.refusal)
            self._note_failed(block, error)
            on_done(error)
            return
        # This is the failed block, after which higher blocks can be stored again.
        if number == self._refused_from:
            self._refused_from = None
        self._under_way[number] += 1

        def stored(operation: StoreBlock) -> None:
            self._no_longer_under_way(number)
            # An unsettled commit may have stored the block, so the state is read again.
            if operation.error is not None:
                self._note_failed(block, operation.error)
                self._read_if_unsettled(operation.error, self.apply_retention)
            else:
                place, is_new, stream, mended_bytes = operation.result
                if mended_bytes is not None:
                    self._note_mended(place, mended_bytes)
                elif is_new:
                    self._note_stored(place)
                    self._note_stream(stream)
                    self.verifier_state = block.verifier_state or self.verifier_state
                if number == self._refused_from:
                    # An earlier operation for the same block failed after this operation was submitted.
                    self._refused_from = None
            on_done(operation.error)
            self.apply_retention()

        # If the previous block is being stored, it must be stored first. Several operations may store the same block at
        # a time.
        required = behind if behind in self._under_way else None
        mends = number in self.damaged
        try:
            work = partial(self._log.store, block=block, time_us=self._now_us(), behind=required, mends=mends)
            self._storage.submit_write(StoreBlock(block, work, stored))
        except StorageClosed as error:
            self._no_longer_under_way(number)
            on_done(error)

    def forget_failed(self) -> None:
        """Forgets which block could not be stored, because the node has given up all blocks that are not durable."""
        self._refused_from = None
        self._top = -1 if self.newest is None else self.newest.number

    def _no_longer_under_way(self, number: int) -> None:
        self._under_way[number] -= 1
        if not self._under_way[number]:
            del self._under_way[number]

    def stage(
        self, attempt: int, first_part: int, parts: Sequence[bytes], on_done: Callable[[StorageError | None], None]
    ) -> None:
        work = partial(self._log.stage, attempt=attempt, part=first_part, data=parts)
        self._storage.submit_write(StageParts(len(parts), work, lambda operation: on_done(operation.error)))

    def unstage(self, attempt: int) -> None:
        # If the storage is closed, the next start deletes all staged parts.
        with suppress(StorageClosed):
            self._storage.submit_write(DoLittle(partial(self._log.unstage, attempt=attempt), ignore_done))

    def read(
        self,
        number: int,
        part: int,
        bytes_max: int,
        on_done: Callable[[ReadBlocks], None],
        *,
        blocks: int = 1,
    ) -> None:
        """Reads consecutive blocks, see `ReadBlocks`. A block that is damaged or gone is missing from then on."""

        def read(operation: ReadBlocks) -> None:
            if isinstance(operation.error, DatabaseCorrupt):
                self._note_damaged(number, str(operation.error))
            on_done(operation)

        self._storage.submit_read(ReadBlocks(self._log, number, part, bytes_max, read, blocks=blocks))

    def find(self, number: int, on_done: Callable[[Do[BlockPlace | None]], None]) -> None:
        self._storage.submit_read(Do(partial(self._log.find, number=number), on_done))

    def read_roots(self, last: int, on_done: Callable[[Do[list[bytes]]], None]) -> None:
        self._storage.submit_read(Do(partial(self._log.roots, last=last), on_done))

    def statistics(self) -> BlockStoreStatistics:
        return BlockStoreStatistics(
            blocks=self._blocks - self.damaged.count(),
            size_bytes=self._size_bytes,
            first_block=self.available.first,
            last_block=self.available.last,
            damaged=self.damaged.count(),
            stored=self._stored,
            evicted=self._evicted,
            mended=self._mended,
            failed=self._failed,
        )

    def _learn(self, state: StoredChain) -> None:
        self.available, self.ever_stored, self.damaged = state.available, state.stored, state.damaged
        self._blocks, self._size_bytes = state.blocks, state.size_bytes
        self.newest = state.newest
        self._top = max(self._top, -1 if state.newest is None else state.newest.number)
        self.verifier_state = state.verifier_state
        self.is_open = True

    def _note_stored(self, place: BlockPlace) -> None:
        self._stored += 1
        # The totals decide about retention.
        self._blocks += 1
        self._size_bytes += place.size_bytes
        self.available.add(place.number)
        self.ever_stored.add(place.number)
        if self.newest is None or place.number > self.newest.number:
            self.newest = place
            self._top = max(self._top, place.number)

    def _note_damaged(self, number: int, reason: str) -> None:
        if number not in self.available or self.is_closed:
            return
        # Publishers and backfill bring the block again only if it counts neither as available nor as stored.
        logger.error("block_damaged", block=number, reason=reason)
        self.available.discard(number)
        self.ever_stored.discard(number)
        self.damaged.add(number)
        try:
            mark = partial(mark_damaged, chain=self.chain, number=number)
            self._storage.submit_write(Do(mark, partial(_report_unmarked, number)))
        except StorageClosed:
            # A reader or the scan finds the damage again after the next start.
            return
        self.on_damaged(number)

    def _note_mended(self, place: BlockPlace, damaged_bytes: int) -> None:
        self._mended += 1
        self._size_bytes += place.size_bytes - damaged_bytes
        self.damaged.discard(place.number)
        self.available.add(place.number)
        self.ever_stored.add(place.number)
        if self.newest is not None and place.number == self.newest.number:
            self.newest = place
        logger.info("block_mended", block=place.number)

    def _note_failed(self, block: NewBlock, error: StorageError) -> None:
        self._failed += 1
        logger.error("block_not_stored", block=block.number, reason=str(error))
        # Staged parts have no further use, and would fill the disk.
        self._discard(block)
        # A conflict is no gap: another block with this number is stored.
        if block.number > self._top and not isinstance(error, StoredBlockDiffers):
            refused = self._refused_from
            self._refused_from = block.number if refused is None else min(refused, block.number)

    def _read_if_unsettled(self, error: StorageError, then: Callable[[], None]) -> bool:
        """Reads the state of the chain again, then calls `then`, if a write is in doubt. Returns whether it reads."""
        if not isinstance(error, CommitUnsettled):
            return False
        self._read_again(then)
        return True

    def _read_again(self, then: Callable[[], None]) -> None:
        """Reads the state of the chain as soon as the storage knows what it has stored, then calls `then`."""

        def work(session: Session) -> tuple[StoredChain, StreamRecord] | None:
            state = read_chain(session, self._log)
            return None if state is None else (state, self._log.stream(session))

        def read(operation: Do[tuple[StoredChain, StreamRecord] | None]) -> None:
            if isinstance(operation.error, CommitUnsettled | DatabaseLost):
                self._read_again(then)
            elif operation.error is not None:
                # Until the next start, the write counts as one that has stored nothing, and no blocks are deleted.
                logger.error("chain_not_read_again", reason=str(operation.error))
            elif operation.result is not None:
                state, stream = operation.result
                self._learn(state)
                self._note_stream(stream)
                if self._refused_from is not None and self._refused_from in self.available:
                    self._refused_from = None
                then()

        # If the storage is closed, the next start reads the state.
        with suppress(StorageClosed):
            # A read would not wait for the write that is in doubt.
            self._storage.submit_write(Do(work, read))

    def _discard(self, block: NewBlock) -> None:
        if block.attempt is not None:
            self.unstage(block.attempt)

    def apply_retention(self) -> None:
        """Deletes the lowest blocks while a limit of retention is exceeded, in several transactions."""
        if self.is_closed or self._evicting or not self.retention.is_exceeded(self._blocks, self._size_bytes):
            return

        # The state has been read again, so the deletion may go on.
        def counted() -> None:
            self._evicting = False
            self.apply_retention()

        # Only the limit in bytes is exceeded: one block, whose size decides whether another one follows.
        beyond = 1 if self.retention.blocks is None else max(1, self._blocks - self.retention.blocks)
        blocks = min(EVICT_BLOCKS, beyond)

        def evict(session: Session) -> tuple[list[BlockPlace], StreamRecord | None]:
            return self._log.evict(session, blocks), self._log.stream(session)

        def evicted(operation: Do[tuple[list[BlockPlace], StreamRecord | None]]) -> None:
            if operation.error is not None:
                logger.error("blocks_not_evicted", reason=str(operation.error))
                # Until the state is read again, too many blocks are counted, so nothing more may be deleted.
                self._evicting = self._read_if_unsettled(operation.error, counted)
                return
            self._evicting = False
            # The blocks stay in `ever_stored`: nobody is to send them again.
            places, stream = operation.result
            for place in places:
                self._evicted += 1
                self._blocks -= 1
                self._size_bytes -= place.size_bytes
                self.available.discard(place.number)
                self.damaged.discard(place.number)
                self.ever_stored.add(place.number)
            if places:
                numbers = [place.number for place in places]
                logger.info(
                    "blocks_deleted", blocks=len(numbers), first=min(numbers), last=max(numbers), by="retention"
                )
            # Another transaction follows if the limit is still exceeded.
            self._note_stream(stream)
            self.apply_retention()

        self._evicting = True
        try:
            self._storage.submit_write(DoLittle(evict, evicted))
        except StorageClosed:
            # The next start continues the deletion.
            self._evicting = False

    def _note_stream(self, stream: StreamRecord | None) -> None:
        if stream is not None and not self.is_closed:
            self._on_stream_changed(stream)


def _report_unmarked(number: int, operation: Do[None]) -> None:
    """Logs that the damaged block counts as available after the next start, until the damage is found again."""
    if operation.error is not None:
        logger.error("block_damage_not_noted", block=number, reason=str(operation.error))
