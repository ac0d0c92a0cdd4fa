"""`plan_subscription` decides which blocks a subscription gets, and `BlockFeed` reads them from the store, in order and
each once. Nothing is sent here.

The taker of a feed gets the stored bytes of each block in parts, which can begin and end within an item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from block_node.persist.chain_log import PLACES_PER_READ, BlockNumberUnknown, ReadBlocks, StoredParts
from block_node.persist.schema import NUMBER_MAX
from block_node.persist.store import ChainStore
from block_node.protocol_reading import Subscribe, SubscribeStatus
from stream_storage.errors import DatabaseCorrupt, StorageClosed


class SubscribeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of subscriptions.

    - ahead_blocks_max: how many blocks above the last stored block a subscription may begin (`maximumFutureRequest` of
      the reference block node).
    - window_bytes_min, window_bytes_max: the limits of the window, the unconfirmed bytes that a subscriber permits.
    - slow_s_max: how long a full window may stay without a `Received`. missing_s_max: how long a subscription waits for
      a missing block below a stored one. duration_s_max: the time after which a subscription ends with SUCCESS.
    """

    ahead_blocks_max: int = 4_000
    sessions_max: int = 1_000
    window_bytes_min: int = 64 * 1024
    window_bytes_max: int = 16 * 1024 * 1024
    slow_s_max: float = 30.0
    missing_s_max: float = 30.0
    duration_s_max: float | None = None
    tick_s: float = 1.0


class SubscriptionPlan(msgspec.Struct, frozen=True):
    """The accepted range of a subscription, both ends included. start: None means the first block that this node will
    ever store. end: None means no end. early: whether items are also sent before their block is verified."""

    start: int | None
    end: int | None
    early: bool


class PlanRefused(Exception):
    """The error of a subscription that the node refuses."""

    def __init__(self, status: SubscribeStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def plan_subscription(request: Subscribe, first: int | None, last: int | None, ahead_max: int) -> SubscriptionPlan:
    """Plans a subscription. first, last: the blocks that can be read; None: there is none. Raises PlanRefused.

    Source: facts/block_node.md §4.3 and S1 to S8, with one difference: a reference block node without blocks refuses
    every range. This node accepts a range that begins within `ahead_max`, and waits for its blocks."""
    start, end = request.start_block, request.end_block
    if start is not None and start > NUMBER_MAX:
        raise PlanRefused(
            SubscribeStatus.INVALID_START_BLOCK, f"no block has number {start}; leave it out for what comes"
        )
    if end is not None and end > NUMBER_MAX:
        raise PlanRefused(SubscribeStatus.INVALID_END_BLOCK, f"no block has number {end}; leave it out for no end")
    if start is not None and end is not None and end < start:
        raise PlanRefused(SubscribeStatus.INVALID_END_BLOCK, f"the end {end} is below the start {start}")
    # Without a start, the subscription begins with the next new block, or at the first block if it has an end.
    newest = -1 if last is None else last
    begins = start if start is not None else newest + 1 if end is None else first
    if start is not None and first is not None and start < first:
        raise PlanRefused(SubscribeStatus.NOT_AVAILABLE, f"block {start} is not here; the first one is {first}")
    if begins is not None and end is not None and begins > end:
        raise PlanRefused(SubscribeStatus.NOT_AVAILABLE, f"no block up to {end} is here; the first one is {first}")
    for wanted in (begins, end if begins is None else None):
        if wanted is not None and wanted > newest + ahead_max:
            reason = f"block {wanted} is more than {ahead_max} blocks above the last one"
            raise PlanRefused(SubscribeStatus.NOT_AVAILABLE, f"{reason}; ask again when it is nearer")
    if start is None and last is None:
        begins = None
    return SubscriptionPlan(begins, end, request.early)


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
        end, available = self._plan.end, self._store.available
        if self._stops is not None and not self.is_in_block:
            self._end(SubscribeStatus.SUCCESS, self._stops)
        elif end is not None and self.next_block is not None and self.next_block > end:
            self._end(SubscribeStatus.SUCCESS, "")
        elif self.next_block is None and available.first is not None and end is not None and available.first > end:
            # The node was empty, and then stored a first block above the end of the range.
            self._end(SubscribeStatus.NOT_AVAILABLE, f"no block up to {end} is here")
        else:
            if self.next_block is None:
                self.next_block = available.last if end is None else available.first
            if self.next_block is not None and self.next_block in available:
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
