"""The plugin that persists blocks: it collects the items of a block as they arrive, and stores the verified block.

If a block grows beyond HELD_BYTES_MAX in memory, its complete parts are staged: kept on disk until the verification.
"""

from __future__ import annotations

from typing import ClassVar

import structlog

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
from block_node.persist.collector import BlockCollector
from block_node.persist.store import ChainStore
from block_node.protocol import Piece
from stream_storage.errors import StorageError

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
