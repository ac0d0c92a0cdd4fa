"""The workers of persistence: `Persistence` collects the items of a block as they arrive, and stores the verified
block; `BlockScan` reads all stored blocks again and again.

If a block grows beyond HELD_BYTES_MAX in memory, its complete parts are staged: kept on disk until the verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import ClassVar, Final

import structlog

from block_node.blocks.block_reader import HEAD_BYTES_MIN
from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import item_prefix, item_size
from block_node.events import (
    BackfilledBlockNotification,
    BlockBegun,
    BlockDropped,
    BlockOrigin,
    ItemEvent,
    ItemsReceived,
    NodeFailure,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.persist.chain_log import PLACES_PER_READ, BlockNumberUnknown, NewBlock, ReadBlocks
from block_node.persist.mark import PART_BYTES_MAX, cut
from block_node.persist.store import ChainStore
from block_node.protocol import Piece
from ockam.actors.worker import Worker
from stream_storage.errors import DatabaseCorrupt, StorageClosed, StorageError

PREFIXES_MAX: Final = 0x4000
"""The number of item sizes whose prefix is cached. Most items are smaller than 16 KiB."""


prefix_of = lru_cache(maxsize=PREFIXES_MAX)(item_prefix)


class BlockCollector:
    """The bytes of one block that will be stored, `(0x0A length item)*`, from its items as they arrive. They are cut
    into parts at once, which the caller can remove before the block is complete.

    - attempt: the number under which parts are staged (written to disk before the verification). staged: the number of
      staged parts.
    - broken: whether the pieces of an item did not fit the length at its start. The block is then damaged.

    Invariant: all parts except the last have PART_BYTES_MAX bytes. When `add` returns, `_tail` has fewer.
    """

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.item_count = 0
        self.staged = 0
        self._parts: list[bytes] = []
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._head = bytearray()
        self._piece_bytes_left: int | None = None
        self.broken = False

    @property
    def held_bytes(self) -> int:
        return len(self._parts) * PART_BYTES_MAX + self._tail_bytes

    def add(self, items: Sequence[bytes]) -> None:
        tail, size_bytes = self._tail, self._tail_bytes
        for item in items:
            prefix = prefix_of(len(item))
            tail += (prefix, item)
            size_bytes += len(prefix) + len(item)
        self.item_count += len(items)
        self._tail_bytes = size_bytes
        self._cut_tail()

    def add_piece(self, piece: bytes, *, last: bool) -> None:
        """Adds the next piece of an item, whose first bytes show the size of the whole item."""
        if self._piece_bytes_left is None:
            self._head += piece
            if len(self._head) < HEAD_BYTES_MIN and not last:
                return
            piece = bytes(self._head)
            self._head.clear()
            try:
                self._piece_bytes_left = item_size(piece)
            except BlockFormatError:
                self._piece_bytes_left, self.broken = 0, True
            prefix = prefix_of(self._piece_bytes_left or len(piece))
            self._tail.append(prefix)
            self._tail_bytes += len(prefix)
            self.item_count += 1
        self._piece_bytes_left -= len(piece)
        self._tail.append(piece)
        self._tail_bytes += len(piece)
        if last:
            self.broken |= self._piece_bytes_left != 0
            self._piece_bytes_left = None
        self._cut_tail()

    def _cut_tail(self) -> None:
        if self._tail_bytes >= PART_BYTES_MAX:
            tail = self._tail
            parts = cut(b"".join(tail))
            rest = parts.pop() if len(parts[-1]) < PART_BYTES_MAX else b""
            self._parts += parts
            self._tail, self._tail_bytes = [rest] if rest else [], len(rest)

    def take_parts(self) -> tuple[int, list[bytes]]:
        """Removes the complete parts, to be staged. Returns the number of the first, and the parts."""
        first, parts = self.staged, self._parts
        self._parts = []
        self.staged += len(parts)
        return first, parts

    def finish(
        self,
        number: int,
        root: bytes,
        verifier_state: bytes = b"",
        other_roots: tuple[bytes, ...] = (),
        corrected_root: bytes = b"",
    ) -> NewBlock:
        parts = self._parts
        if self._tail_bytes or not (self.staged or parts):
            parts = [*parts, b"".join(self._tail)]
        return NewBlock(
            number=number,
            root=root,
            items=self.item_count,
            parts=parts,
            attempt=self.attempt if self.staged else None,
            staged=self.staged,
            staged_bytes=self.staged * PART_BYTES_MAX,
            verifier_state=verifier_state,
            other_roots=other_roots,
            corrected_root=corrected_root,
        )


HELD_BYTES_MAX = 8 * 1024 * 1024
STAGING_BYTES_MAX = 8 * 1024 * 1024
"""The maximum number of bytes that wait to be staged. While there are more, the plugin accepts no items."""

logger = structlog.get_logger(__name__)


class Persistence(Plugin):
    """Stores verified blocks, and notifies all plugins of the result.

    Invariant: `_staging_bytes` is the size of the parts that were submitted for staging and are not confirmed yet.
    """

    name: ClassVar[str] = "persistence"

    def __init__(self, facility: Facility, store: ChainStore, *, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        super().__init__(facility)
        self._store = store
        self._held_bytes_max = held_bytes_max
        self._attempts: dict[int, BlockCollector] = {}
        self._backfilled: dict[int, BlockCollector] = {}
        self._staging_bytes = 0

    def started(self) -> None:
        super().started()
        # Until the store knows which blocks are stored, no event is delivered, so nothing is lost.
        self.inlet.pause()
        self._store.open(self.context.guard(self._opened))

    def stopped(self) -> None:
        super().stopped()
        # Staged parts of unfinished blocks would stay on disk: the next worker does not know these attempts.
        for attempt in list(self._attempts):
            self._forget(attempt)

    def handle_items(self, event: ItemEvent) -> None:
        # If the beginning of an attempt did not come here, its items are not collected, and the block is not stored.
        if isinstance(event, BlockBegun):
            self._attempts[event.attempt] = BlockCollector(event.attempt)
        elif isinstance(event, ItemsReceived):
            collector = self._attempts.get(event.attempt)
            if collector is not None:
                if event.piece is Piece.WHOLE:
                    collector.add(event.items)
                else:
                    collector.add_piece(event.items[0], last=event.piece is Piece.LAST)
                # A large block goes to the disk part by part, while it still arrives.
                if collector.held_bytes > self._held_bytes_max:
                    self._stage(collector)
        elif isinstance(event, BlockDropped):
            self._forget(event.attempt)

    def handle_notification(self, notification: Notification) -> None:
        if isinstance(notification, VerificationNotification):
            self._verified(notification)
        elif isinstance(notification, BackfilledBlockNotification):
            # A whole block has no attempt, and waits for its verification under its number.
            collector = BlockCollector(0)
            collector.add(notification.items)
            self._backfilled[notification.block_number] = collector
        elif isinstance(notification, NodeFailure):
            self._backfilled.clear()
            for attempt in list(self._attempts):
                self._forget(attempt)
            self._store.forget_failed()

    def _opened(self, error: StorageError | None) -> None:
        if error is not None:
            raise error
        self.inlet.resume()

    def _verified(self, result: VerificationNotification) -> None:
        # A refused block is forgotten, with its staged parts.
        if not result.success:
            self._forget(result.attempt)
            if not result.attempt:
                self._backfilled.pop(result.block_number, None)
            return
        number = result.block_number
        collector = self._attempts.pop(result.attempt, None) or self._backfilled.pop(number, None)
        # This plugin was restarted while the block arrived, or a piece of the block was wrong.
        if collector is None or collector.broken:
            self._report_failure(number, result.source, "its items did not all come here; send the block again")
            return
        # The notification follows when the block is synced, even if that is after later events.
        stored = self.context.guard(lambda error: self._stored(number, result.root, result.source, error))
        block = collector.finish(number, result.root, result.verifier_state, result.other_roots, result.corrected_root)
        self._store.store(block, stored)

    def _stored(self, number: int, root: bytes, source: BlockOrigin, error: StorageError | None) -> None:
        if error is None:
            self.facility.publish(PersistedNotification(number, True, source, root=root))
        else:
            self._report_failure(number, source, str(error))

    def _report_failure(self, number: int, source: BlockOrigin, reason: str) -> None:
        self.facility.publish(PersistedNotification(number, False, source, reason))

    def _stage(self, collector: BlockCollector) -> None:
        first, parts = collector.take_parts()
        size_bytes = sum(map(len, parts))
        self._staging_bytes += size_bytes
        # The disk is slower than the publishers.
        if self._staging_bytes > STAGING_BYTES_MAX:
            self.inlet.pause()

        def staged(error: StorageError | None) -> None:
            self._staging_bytes -= size_bytes
            # The block lacks a part now, so storing it will fail (`StagedPartMissing`).
            if error is not None:
                logger.error("block_part_not_kept", attempt=collector.attempt, reason=str(error))
            if self._staging_bytes <= STAGING_BYTES_MAX:
                self.inlet.resume()

        self._store.stage(collector.attempt, first, parts, self.context.guard(staged))

    def _forget(self, attempt: int) -> None:
        collector = self._attempts.pop(attempt, None)
        if collector is not None and collector.staged:
            self._store.unstage(attempt)


READ_BYTES = 256 * 1024
"""The most bytes of one read of the scan: few, so that readers wait for it only briefly."""
PAUSE_S = 5.0
"""The pause after each round through all blocks, and after a read that failed for another reason than its block."""


class BlockScan(Worker):
    """Reads all stored blocks again and again, slowly, so that damage is found before a reader needs the block: at most
    `bytes_per_s` bytes in a second."""

    def __init__(self, store: ChainStore, bytes_per_s: int) -> None:
        self._store = store
        self._bytes_per_s = bytes_per_s
        self._number = self._part = 0

    def started(self) -> None:
        self._store.when_open(self.context.guard(self._read))

    def _read(self) -> None:
        number = self._store.available.next_from(self._number)
        if number is None:
            self._number = self._part = 0
            self.context.call_later(PAUSE_S, self._read)
            return
        if number != self._number:
            self._number, self._part = number, 0
        # If the node is stopping, the scan ends.
        with suppress(StorageClosed):
            self._store.read(number, self._part, READ_BYTES, self.context.guard(self._has_read), blocks=PLACES_PER_READ)

    def _has_read(self, operation: ReadBlocks) -> None:
        """Continues after the blocks that were read. A block that cannot be read is left out until the next round."""
        size_bytes = sum(len(part) for found in operation.found for part in found.parts)
        last = operation.found[-1] if operation.error is None else None
        self._number, self._part = operation.number + 1, 0
        if last is not None:
            is_whole = last.is_last or not last.parts
            self._number, self._part = (last.place.number + 1, 0) if is_whole else (last.place.number, last.next_part)
        is_of_block = operation.error is None or isinstance(operation.error, DatabaseCorrupt | BlockNumberUnknown)
        self.context.call_later(max(size_bytes, 1) / self._bytes_per_s if is_of_block else PAUSE_S, self._read)
