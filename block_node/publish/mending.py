"""Takes a block again from its publisher if the stored bytes are damaged or gone, to be verified and stored again.

Its publisher offers a duplicate, as the block was acknowledged. The answer DuplicateBlock comes only when the block is
stored again, so that the publisher sends it. One block at a time is taken again, as a whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from block_node.events import (
    BackfilledBlockNotification,
    BlockOrigin,
    NodeFailure,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility
from block_node.item_splitting import ItemJoiner
from block_node.persist.store import ChainStore
from block_node.protocol import Piece, PublishStatus
from block_node.publish.block_machine import PublishLimits
from block_node.publish.publish_machine import status_of

BYTES_MAX = 128 * 1024 * 1024
"""The largest block with which a publisher can mend. The largest message of the reference block node is smaller."""

FindRoots = Callable[[int, Callable[[tuple[bytes, ...] | None], None]], None]
"""Passes on the root hashes that a stored block may have. Empty: any root hash. None: they cannot be read now."""


class MendingSession(Protocol):
    """The session whose publisher sends the block again."""

    def mended(self, block_number: int) -> None: ...

    def end(self, status: PublishStatus, block_number: int | None, reason: str) -> None: ...


class Mending:
    """The one block that is being taken again.

    Invariant: `_session` is set exactly while a block is being received, verified or stored.
    """

    def __init__(self, facility: Facility, store: ChainStore, limits: PublishLimits, find_roots: FindRoots) -> None:
        self._facility = facility
        self._store = store
        self._limits = limits
        self._find_roots = find_roots
        self._session: MendingSession | None = None
        self._number = -1
        self._joiner = ItemJoiner()
        self._size_bytes = 0
        self._began_s = 0.0

    def wants(self, number: int) -> bool:
        return self._session is None and number in self._store.damaged

    def takes(self, session: MendingSession, number: int) -> bool:
        return session is self._session and number == self._number

    def begin(self, session: MendingSession, number: int, items: list[bytes]) -> None:
        self._session, self._number = session, number
        self._size_bytes, self._began_s = 0, trio.current_time()
        self.add(session, items, Piece.WHOLE)

    def add(self, session: MendingSession, items: list[bytes], piece: Piece) -> None:
        if session is not self._session:
            return
        self._size_bytes += sum(map(len, items))
        if self._size_bytes > BYTES_MAX:
            self._end().mended(self._number)
        else:
            self._joiner.add(items, piece)

    def finish(self, session: MendingSession) -> None:
        # A second end of the same block is ignored.
        if session is not self._session or not self._joiner.items:
            return
        number, items, size_bytes = self._number, self._joiner.take(), self._size_bytes

        def verify(roots: tuple[bytes, ...] | None) -> None:
            if self._session is not session or self._number != number:
                return
            if roots is None:
                # Unchecked, any block could take the place of the damaged one.
                reason = "the root hash that the block must have cannot be read now"
                self._end().end(PublishStatus.PERSISTENCE_FAILED, number, reason)
            else:
                block = BackfilledBlockNotification(number, items, size_bytes, BlockOrigin.PUBLISHER, roots)
                self._facility.publish(block)

        self._find_roots(number, verify)

    def leave(self, session: MendingSession) -> None:
        """Forgets the block of a session that ends or sends another block; a block being stored is still stored."""
        if session is self._session:
            self._end()

    def tick(self) -> None:
        """Ends the stream of a publisher that takes too long, as for a new block (`PublishLimits.block_s_max`)."""
        limits = self._limits
        allowed_s = limits.block_s_max + self._size_bytes / limits.earned_bytes_per_s
        if self._session is not None and trio.current_time() - self._began_s > allowed_s:
            reason = f"the block was not stored again after {allowed_s:g} s"
            self._end().end(PublishStatus.TIMEOUT, self._number, reason)

    def handle_notification(self, notification: Notification) -> None:
        if self._session is None:
            return
        if isinstance(notification, NodeFailure):
            self._end()
        elif isinstance(notification, VerificationNotification):
            is_own = notification.block_number == self._number and notification.attempt == 0
            if is_own and not notification.success and notification.source is BlockOrigin.PUBLISHER:
                self._end().end(status_of(notification.failure), self._number, notification.reason)
        elif isinstance(notification, PersistedNotification) and notification.block_number == self._number:
            if notification.succeeded:
                self._end().mended(self._number)
            elif notification.source is BlockOrigin.PUBLISHER:
                self._end().end(PublishStatus.PERSISTENCE_FAILED, self._number, notification.reason)

    def _end(self) -> MendingSession:
        session, self._session = self._session, None
        self._joiner.take()
        assert session is not None, "a block is being taken"
        return session
