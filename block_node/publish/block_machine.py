"""The state machine of the blocks on their way from publishers to the log: the stages of a block, and how they change.

One table (`TRANSITIONS`) lists each change and its consequences. This module decides and sends nothing:
`block_node.publish.publish_machine`, its only user, reports the changes and carries out the consequences.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from block_node.events import (
    EVENT_OVERHEAD_BYTES,
    ITEM_OVERHEAD_BYTES,
    BlockBegun,
    BlockEnded,
    ItemEvent,
    ItemsReceived,
)
from block_node.protocol import Piece
from block_node.publish.decision import PublishView
from block_node.publish.limits import PublishLimits
from block_node.publish.session_machine import PublisherState
from block_node.publish.statistics import InFlightStatistics
from block_node.publish.watermark_machine import Watermark


class Stage(enum.Enum):
    """The stage of a block.

    MISSING: no publisher sends the block. RECEIVING: its items are arriving. COMPLETE: all items have arrived, but
    earlier blocks are not verified yet, or the plugins have no room. VERIFYING: the plugins have all items. VERIFIED:
    the block is being stored. OVER: the block is stored, or was backfilled; publishers have nothing more to do with it.
    """

    MISSING = "missing"
    RECEIVING = "receiving"
    COMPLETE = "complete"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    OVER = "over"


class Change(enum.Enum):
    """A change that happens to one block."""

    ACCEPTED = "its header was accepted"
    BEGUN_ANEW = "its publisher sent the header again"
    ENDED = "its end has come"
    FORWARDED = "the plugins have all of its items"
    VERIFIED = "verification passed"
    REFUSED = "verification failed"
    SUPERSEDED = "verification failed, and the publisher is not to blame"
    BACKFILLED = "backfill brought the block, and verification passed"
    STORED = "the block is durable"
    PUBLISHER_WENT_ON = "its publisher sent the header of another block"
    PUBLISHER_LEFT = "its publisher's session has ended"
    EVICTED = "a block below it is missing, and comes first"
    TIMED_OUT = "its publisher took too long"
    NODE_FAILED = "the node failed or stops, and the plugins have forgotten what is not durable"


class Then(enum.Enum):
    """A consequence of a change.

    DROP: the plugins forget the items that they have. ORPHAN: the block loses its publisher. DISCARD: the node ignores
    the rest of the block that its publisher has sent or still sends. SKIP: the publisher is told to continue with the
    next block. END_STREAM: the publisher's stream ends.
    """

    DROP = "drop"
    ORPHAN = "orphan"
    DISCARD = "discard"
    SKIP = "skip"
    END_STREAM = "end stream"


class Step(NamedTuple):
    stage: Stage
    then: tuple[Then, ...] = ()


_MISSING, _RECEIVING, _COMPLETE = Stage.MISSING, Stage.RECEIVING, Stage.COMPLETE
_VERIFYING, _VERIFIED, _OVER = Stage.VERIFYING, Stage.VERIFIED, Stage.OVER

TRANSITIONS: dict[tuple[Stage, Change], Step] = {
    (_MISSING, Change.ACCEPTED): Step(_RECEIVING),
    (_RECEIVING, Change.BEGUN_ANEW): Step(_RECEIVING, (Then.DROP,)),
    (_RECEIVING, Change.ENDED): Step(_COMPLETE),
    (_RECEIVING, Change.REFUSED): Step(_MISSING, (Then.DISCARD, Then.END_STREAM)),
    (_RECEIVING, Change.SUPERSEDED): Step(_MISSING, (Then.DISCARD,)),
    (_RECEIVING, Change.BACKFILLED): Step(_OVER, (Then.DISCARD, Then.SKIP, Then.DROP)),
    (_RECEIVING, Change.STORED): Step(_OVER, (Then.DISCARD, Then.SKIP, Then.DROP)),
    (_RECEIVING, Change.PUBLISHER_WENT_ON): Step(_MISSING, (Then.DROP,)),
    (_RECEIVING, Change.PUBLISHER_LEFT): Step(_MISSING, (Then.DROP,)),
    (_RECEIVING, Change.EVICTED): Step(_MISSING, (Then.DISCARD, Then.DROP)),
    (_RECEIVING, Change.TIMED_OUT): Step(_MISSING, (Then.DROP, Then.END_STREAM)),
    (_RECEIVING, Change.NODE_FAILED): Step(_MISSING),
    (_COMPLETE, Change.FORWARDED): Step(_VERIFYING),
    (_COMPLETE, Change.REFUSED): Step(_MISSING, (Then.END_STREAM,)),
    (_COMPLETE, Change.SUPERSEDED): Step(_MISSING),
    (_COMPLETE, Change.BACKFILLED): Step(_OVER, (Then.DROP,)),
    (_COMPLETE, Change.STORED): Step(_OVER, (Then.DROP,)),
    (_COMPLETE, Change.EVICTED): Step(_MISSING, (Then.DROP,)),
    (_COMPLETE, Change.PUBLISHER_LEFT): Step(_COMPLETE, (Then.ORPHAN,)),
    (_COMPLETE, Change.NODE_FAILED): Step(_MISSING),
    (_VERIFYING, Change.VERIFIED): Step(_VERIFIED),
    (_VERIFYING, Change.REFUSED): Step(_MISSING, (Then.END_STREAM,)),
    (_VERIFYING, Change.SUPERSEDED): Step(_MISSING),
    (_VERIFYING, Change.BACKFILLED): Step(_OVER, (Then.DROP,)),
    (_VERIFYING, Change.STORED): Step(_OVER, (Then.DROP,)),
    (_VERIFYING, Change.PUBLISHER_LEFT): Step(_VERIFYING, (Then.ORPHAN,)),
    (_VERIFYING, Change.NODE_FAILED): Step(_MISSING),
    (_VERIFIED, Change.BACKFILLED): Step(_OVER),
    (_VERIFIED, Change.STORED): Step(_OVER),
    (_VERIFIED, Change.PUBLISHER_LEFT): Step(_VERIFIED, (Then.ORPHAN,)),
    (_VERIFIED, Change.NODE_FAILED): Step(_MISSING),
}
"""The table of stages: for each stage and change, the next stage and the consequences. A pair that is not listed cannot
happen. Items do not change the stage, and arrive only in RECEIVING."""


class ReceivedItems(NamedTuple):
    """The items of one message. size_bytes: their total size. held_bytes: the memory that holding them takes."""

    items: list[bytes]
    piece: Piece
    size_bytes: int
    held_bytes: int


class BlockInFlight:
    """One block on its way to the log, from its accepted header on.

    publisher: the publisher that sends the block. None if that publisher has left; then the block stays only if it has
    arrived completely. queue: received items that were not forwarded to the plugins yet. attempt: the number by which
    the plugins know the items forwarded so far; 0 if none were forwarded. deadline_s: the time by which `stage` must
    have ended. earned_s: the part of `deadline_s` that was added for received items. root: the root of a verified
    block.

    Invariant: `queued_bytes` is the sum of the bytes of all items in `queue`.
    """

    __slots__ = (
        "attempt",
        "deadline_s",
        "earned_s",
        "number",
        "publisher",
        "queue",
        "queued_bytes",
        "root",
        "stage",
    )

    def __init__(self, number: int, publisher: PublisherState, deadline_s: float) -> None:
        self.number = number
        self.publisher: PublisherState | None = publisher
        self.stage = Stage.MISSING
        self.queue: deque[ReceivedItems] = deque()
        self.queued_bytes = 0
        self.attempt = 0
        self.deadline_s = deadline_s
        self.earned_s = 0.0
        self.root = b""


class Blocks:
    """All blocks of one node, as publishing sees them: durable up to the watermark, verified, in flight, or missing.

    next_to_verify: the block whose items go to the plugins; all blocks below it are verified. queued_bytes: the size of
    all received items that were not forwarded.

    Invariant (`check`): a block is in flight under its own number, and is not durable. It is VERIFIED exactly if it is
    below `next_to_verify`, and no block above `next_to_verify` is with the plugins. Blocks that are durable without a
    hole are verified. Every block that was begun is in flight or over.
    """

    def __init__(self, limits: PublishLimits, watermark: Watermark) -> None:
        self._limits = limits
        self._watermark = watermark
        self._blocks: dict[int, BlockInFlight] = {}
        self._attempts = 0
        self.next_to_verify = watermark.next_durable
        self.queued_bytes = 0
        self._begun = self._over = self._expired = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, number: object) -> bool:
        return number in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def find(self, number: int) -> BlockInFlight | None:
        return self._blocks.get(number)

    def get(self, number: int) -> BlockInFlight:
        """Returns a block, which must be in flight."""
        return self._blocks[number]

    def all(self) -> list[BlockInFlight]:
        """Returns the blocks in flight, ordered by number. The list does not change when blocks leave."""
        return [self._blocks[number] for number in sorted(self._blocks)]

    @property
    def last_block(self) -> int | None:
        """The watermark: all blocks up to it are verified and durable. None if there is no such block."""
        return self._watermark.last_block

    @property
    def next_durable(self) -> int:
        """The lowest block that is not durable; it moves the watermark on."""
        return self._watermark.next_durable

    @property
    def next_block(self) -> int:
        """The lowest block that no publisher sends and the node does not have: `PublishView.wanted`, without a view."""
        number = self.next_to_verify
        while number in self._blocks or number in self._watermark.above:
            number += 1
        return number

    @property
    def awaited(self) -> int | None:
        """The lowest block that is not durable, if it was backfilled and is being stored; else None."""
        number = self._watermark.next_durable
        return number if number < self.next_to_verify and number not in self._blocks else None

    @property
    def view(self) -> PublishView:
        """The facts from which the answer to a header is decided."""
        mark = self._watermark
        taken = {*mark.above, *self._blocks}
        # A backfilled block that is being stored is not in flight, but publishers need not send it either.
        taken.update(range(mark.next_durable, self.next_to_verify))
        return PublishView(mark.last_block, mark.next_durable, taken, self.is_crowded)

    @property
    def is_crowded(self) -> bool:
        """Whether so much is in flight that only the lowest missing block is accepted."""
        limits = self._limits
        return self.queued_bytes >= limits.queued_bytes_max or len(self._blocks) >= limits.ahead_blocks_max

    @property
    def has_gap(self) -> bool:
        """Whether no publisher sends the next block to verify, although blocks above it are in flight."""
        number = self.next_to_verify
        return number not in self._blocks and any(each > number for each in self._blocks)

    def begin(self, number: int, publisher: PublisherState, now_s: float) -> None:
        """Puts a missing block in flight, after its header was accepted."""
        assert number not in self._blocks, "a block has one publisher at a time"
        # The first block of an empty node may be below the one that the node was configured for.
        if number < self._watermark.next_durable:
            self._watermark.begin_at(number)
            self.verify_again_from(number)
        block = self._blocks[number] = BlockInFlight(number, publisher, now_s + self._limits.block_s_max)
        self._begun += 1
        self.step(block, Change.ACCEPTED)

    def step(self, block: BlockInFlight, change: Change) -> tuple[Then, ...]:
        """Makes one step of the table with this block. Returns the consequences, which the caller must carry out."""
        block.stage, then = TRANSITIONS[block.stage, change]
        if block.stage is Stage.VERIFIED and change is Change.VERIFIED:
            self.next_to_verify = block.number + 1
        elif block.stage is Stage.MISSING or block.stage is Stage.OVER:
            del self._blocks[block.number]
            self._over += 1
            self._expired += change is Change.TIMED_OUT
            self._forget_items(block)
        elif change is Change.BEGUN_ANEW:
            # Dropped items lose the time that they earned.
            self._forget_items(block)
            block.deadline_s -= block.earned_s
            block.earned_s = 0.0
        return then

    def add(self, block: BlockInFlight, items: list[bytes], piece: Piece) -> None:
        """Adds received items to a block."""
        limits, count = self._limits, len(items)
        size_bytes = sum(map(len, items))
        held_bytes = size_bytes + ITEM_OVERHEAD_BYTES * count + EVENT_OVERHEAD_BYTES
        block.queue.append(ReceivedItems(items, piece, size_bytes, held_bytes))
        block.queued_bytes += held_bytes
        self.queued_bytes += held_bytes
        # A large block gets time for its size, so that it meets the limits of size and not the one of time.
        earned_s = count / limits.earned_items_per_s + held_bytes / limits.earned_bytes_per_s
        block.earned_s += earned_s
        block.deadline_s += earned_s

    def allow_processing(self, block: BlockInFlight, now_s: float) -> None:
        """Starts the time that the plugins may take for a block."""
        block.deadline_s = now_s + self._limits.processing_s_max

    def durable(self, number: int) -> bool:
        """Notes that a block became durable. Returns whether the watermark moved: over this block, but never over a
        hole."""
        moved = self._watermark.durable(number)
        self.verified_below(self._watermark.next_durable)
        return moved

    def rest(self) -> None:
        """Lets the next accepted header begin the chain at another block, if no block is in flight and none became
        durable."""
        if not self._blocks:
            self._watermark.forget_begin()
            self.verified_below(self._watermark.next_durable)

    def verified_below(self, number: int) -> None:
        """Notes that all blocks below `number` are verified. The last of them was not a block in flight."""
        self.next_to_verify = max(self.next_to_verify, number)

    def verify_again_from(self, number: int) -> None:
        """Notes that blocks from `number` on must be verified again. The plugins have none of them."""
        self.next_to_verify = min(self.next_to_verify, number)

    def find_to_forward(self) -> BlockInFlight | None:
        """Returns the lowest block that is not verified, if it has something to forward; else None.

        Blocks above it wait, because a block that continues a bad one cannot be judged.
        """
        block = self._blocks.get(self.next_to_verify)
        return block if block is not None and (block.queue or block.stage is Stage.COMPLETE) else None

    def forward(self, block: BlockInFlight, now_s: float) -> ItemEvent:
        """Takes the next event of the block to be forwarded. The runner publishes it at once."""
        if not block.attempt:
            self._attempts += 1
            block.attempt = self._attempts
            return BlockBegun(block.number, block.attempt)
        if block.queue:
            received = block.queue.popleft()
            block.queued_bytes -= received.held_bytes
            self.queued_bytes -= received.held_bytes
            return ItemsReceived(block.number, block.attempt, received.items, received.size_bytes, received.piece)
        self.step(block, Change.FORWARDED)
        self.allow_processing(block, now_s)
        return BlockEnded(block.number, block.attempt)

    def extend_held(self, elapsed_s: float) -> None:
        """Gives more time to blocks whose publishers were not read during the last `elapsed_s` seconds."""
        for block in self._blocks.values():
            if block.stage is Stage.RECEIVING and block.publisher is not None and block.publisher.is_held:
                block.deadline_s += elapsed_s

    def late(self, now_s: float) -> Iterator[BlockInFlight]:
        """Yields the blocks whose stage should have ended by now, lowest first. Blocks may leave during the
        iteration."""
        for block in self.all():
            is_late = block.stage is not Stage.COMPLETE and block.deadline_s <= now_s
            if is_late and self._blocks.get(block.number) is block:
                yield block

    def stalled(self, end: int) -> Iterator[BlockInFlight]:
        """Yields the blocks below `end` that are still being received, lowest first. Blocks may leave during the
        iteration."""
        for block in self.all():
            if block.number < end and block.stage is Stage.RECEIVING and self._blocks.get(block.number) is block:
                yield block

    def _forget_items(self, block: BlockInFlight) -> None:
        """Drops the items of a block that were not forwarded."""
        self.queued_bytes -= block.queued_bytes
        block.queue.clear()
        block.queued_bytes = 0

    def statistics(self) -> InFlightStatistics:
        return InFlightStatistics(len(self._blocks), self.queued_bytes, self._begun, self._over, self._expired)

    def check(self) -> None:
        """Checks the invariant."""
        self._watermark.check()
        assert self._watermark.next_durable <= self.next_to_verify
        assert self.next_block == self.view.wanted
        assert self._begun - self._over == len(self._blocks), "a block was lost, or ended twice"
        assert self.queued_bytes == sum(block.queued_bytes for block in self._blocks.values())
        for number, block in self._blocks.items():
            assert block.number == number >= self._watermark.next_durable
            assert number not in self._watermark.above
            assert block.queued_bytes == sum(received.held_bytes for received in block.queue)
            assert (block.stage is Stage.VERIFIED) == (number < self.next_to_verify)
            assert not block.attempt or number <= self.next_to_verify
