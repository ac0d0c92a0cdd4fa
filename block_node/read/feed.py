"""BlockFeed: reads the blocks of a subscription from the store, in order and each once. It sends nothing.

Its taker gets the stored bytes of each block in parts, which can begin and end within an item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from block_node.persist.errors import BlockNumberUnknown
from block_node.persist.operations import PLACES_PER_READ, ReadBlocks, StoredParts
from block_node.persist.store import ChainStore
from block_node.protocol_reading import SubscribeStatus
from block_node.read.subscription_plan import SubscriptionPlan
from stream_storage.errors import DatabaseCorrupt, StorageClosed

READ_BYTES: Final = 1024 * 1024
"""The maximum number of bytes in one read. The memory of a feed holds at most one read."""


class FeedTaker(Protocol):
    def has_room(self) -> bool:
        """Whether to read more. After False, `BlockFeed.go_on` must follow when there is room."""
        ...

    def take_parts(self, found: StoredParts) -> None: ...

    def end(self, status: SubscribeStatus, reason: str) -> None:
        """Called once, when no more blocks follow."""
        ...


class BlockFeed:
    """The blocks of one plan. next_block: the lowest block that was not read completely; None while it is not known.

    has_source: whether blocks that are not stored yet can come. If not, the feed ends instead of waiting.
    guard: wraps the callback of the store, so that an exception fails the subscription and not the store.
    Invariant: at most one read is in progress. `_part` is the next part of block `next_block`.
    """

    def __init__(
        self,
        plan: SubscriptionPlan,
        store: ChainStore,
        taker: FeedTaker,
        *,
        now_s: Callable[[], float],
        missing_s_max: float,
        guard: Callable[[Callable[[ReadBlocks], None]], Callable[[ReadBlocks], None]],
    ) -> None:
        self._plan = plan
        self._store = store
        self._taker = taker
        self._now_s = now_s
        self._missing_s_max = missing_s_max
        self._guard = guard
        self._reading = self._is_over = False
        self._stops: str | None = None
        self._part = 0
        self._waits_from_s: float | None = None
        self.has_source = True
        self.next_block = plan.start

    @property
    def is_in_block(self) -> bool:
        return self._part > 0

    @property
    def is_waiting(self) -> bool:
        return self._waits_from_s is not None

    def go_on(self) -> None:
        """Reads on, if nothing is being read and there is room. Called when a block was stored or there is room."""
        if self._is_over or self._reading or not self._taker.has_room():
            return
        end, first = self._plan.end, self._store.available.first
        if self._stops is not None and not self.is_in_block:
            self._end(SubscribeStatus.SUCCESS, self._stops)
        elif end is not None and self.next_block is not None and self.next_block > end:
            self._end(SubscribeStatus.SUCCESS, "")
        elif self.next_block is None and first is not None and end is not None and first > end:
            # The node was empty, and then stored a first block above the end of the range.
            self._end(SubscribeStatus.NOT_AVAILABLE, f"no block up to {end} is here")
        elif self._find_next():
            self._read()
        else:
            self._wait()

    def tick(self) -> None:
        """Ends the feed if a block below stored ones does not come in time."""
        last, number = self._store.available.last, self.next_block
        is_missing = number is not None and last is not None and number < last
        if self._waits_from_s is not None and is_missing and self._now_s() - self._waits_from_s >= self._missing_s_max:
            self._end(SubscribeStatus.NOT_AVAILABLE, f"block {number} is missing here, and did not come")
        self.go_on()

    def pass_over(self, number: int) -> None:
        """Leaves out the next block, because the taker has it from elsewhere."""
        self.next_block, self._waits_from_s = number + 1, None

    def stop(self, reason: str) -> None:
        """Ends the feed with SUCCESS at the end of the present block."""
        self._stops = reason
        self.go_on()

    def close(self) -> None:
        """Reads no more, and calls its taker no more. Safe to repeat."""
        self._is_over = True

    def _find_next(self) -> bool:
        available = self._store.available
        if self.next_block is None:
            self.next_block = available.last if self._plan.end is None else available.first
        return self.next_block is not None and self.next_block in available

    def _wait(self) -> None:
        first, number = self._store.available.first, self.next_block
        # Retention has deleted the block. A damaged one may still come again.
        if number is not None and first is not None and number < first and number not in self._store.damaged:
            reason = f"block {number} is not kept any more; the first one is {first}"
            self._end(SubscribeStatus.NOT_AVAILABLE, reason)
        elif not self.has_source:
            self._end(SubscribeStatus.SOURCE_ERROR, "the last source of blocks has ended; subscribe again to wait")
        elif self._waits_from_s is None:
            self._waits_from_s = self._now_s()

    def _read(self) -> None:
        assert self.next_block is not None, "the next block is known before it is read"
        self._reading, self._waits_from_s = True, None
        end = self._plan.end
        blocks = PLACES_PER_READ if end is None else min(PLACES_PER_READ, end - self.next_block + 1)
        try:
            self._store.read(self.next_block, self._part, READ_BYTES, self._guard(self._note_read), blocks=blocks)
        except StorageClosed:
            self._end(SubscribeStatus.ERROR, "the node stops; subscribe again")

    def _note_read(self, operation: ReadBlocks) -> None:
        self._reading = False
        if self._is_over:
            return
        error = operation.error
        if isinstance(error, BlockNumberUnknown) or (isinstance(error, DatabaseCorrupt) and not self.is_in_block):
            # A damaged block is missing until it comes again. If a part of it was taken, the feed must end.
            self._wait()
            return
        if error is not None:
            self._end(SubscribeStatus.ERROR, f"block {self.next_block} cannot be read: {error}")
            return
        for found in operation.found:
            is_last = found.is_last
            self.next_block = found.place.number + is_last
            self._part = 0 if is_last else found.next_part
            self._taker.take_parts(found)
            # The taker has found the bytes damaged.
            if self._is_over:
                return
        self.go_on()

    def _end(self, status: SubscribeStatus, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._taker.end(status, reason)
