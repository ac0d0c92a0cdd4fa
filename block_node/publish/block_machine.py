"""The blocks on their way from publishers to the log: the stages of a block, what can happen to it, and what follows.

One table has it all (`TRANSITIONS`). Nothing is decided or sent here: `block_node.publish.publish_machine`, the only
user, says what happens, and does what follows.
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
    """How far a block is.

    MISSING: no publisher sends the block. RECEIVING: its items are coming. COMPLETE: all items have come, but blocks
    before it are not verified yet, or the plugins have no room. VERIFYING: the plugins have all items. VERIFIED: the
    block is being stored. OVER: the block is stored, or has come by backfill; publishers have no more to do with it.
    """

    MISSING = "missing"
    RECEIVING = "receiving"
    COMPLETE = "complete"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    OVER = "over"


class Change(enum.Enum):
    """What happens to one block."""

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
    """What follows from a change.

    DROP: the plugins forget the items that they have. ORPHAN: the block has no publisher any more. DISCARD: the rest of
    the block, which its publisher has sent or still sends, is not wanted. SKIP: the publisher is told to go on with the
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
"""A pair that is not here cannot happen. Items change no stage, and come in RECEIVING alone."""


class ReceivedItems(NamedTuple):
    """The items of one message, with the size of the items, and with what holding them costs."""

    items: list[bytes]
    piece: Piece
    size_bytes: int
    held_bytes: int


class BlockInFlight:
    """One block on its way to the log, from its accepted header on.

    publisher: the one that sends it; None once that one has left, which a complete block survives. queue: messages
    that were not forwarded to the plugins yet. attempt: names the items that the plugins have; 0 where they have none.
    deadline_s: when the stage must have ended. earned_s: how much later that is for the items that have come. root: of
    a verified block.
    Invariant: `queued_bytes` is the sum over `queue`.
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

    next_to_verify: the block whose items go to the plugins; all blocks below it are verified. queued_bytes: what all
    blocks hold that was not forwarded.

    Invariant (`check`): a block is in flight under its own number, and is not durable. It is VERIFIED exactly where it
    is below `next_to_verify`, and none above that one is with the plugins. What is durable without a hole is verified.
    Every block that was begun is in flight or over.
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
        """The block must be in flight."""
        return self._blocks[number]

    def all(self) -> list[BlockInFlight]:
        """By block number. The list does not change when blocks leave."""
        return [self._blocks[number] for number in sorted(self._blocks)]

    @property
    def last_block(self) -> int | None:
        """The watermark: all blocks up to it are verified and durable. None where there is none."""
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
        """The lowest block that is not durable, where it came by backfill and is being stored."""
        number = self._watermark.next_durable
        return number if number < self.next_to_verify and number not in self._blocks else None

    @property
    def view(self) -> PublishView:
        """What the answer to a header is made from."""
        mark = self._watermark
        taken = {*mark.above, *self._blocks}
        # A block that came by backfill and is being stored is not in flight, and is not wanted from publishers either.
        taken.update(range(mark.next_durable, self.next_to_verify))
        return PublishView(mark.last_block, mark.next_durable, taken, self.is_crowded)

    @property
    def is_crowded(self) -> bool:
        """So much is in flight that only the lowest missing block is welcome."""
        limits = self._limits
        return self.queued_bytes >= limits.queued_bytes_max or len(self._blocks) >= limits.ahead_blocks_max

    @property
    def has_gap(self) -> bool:
        """No publisher sends the block that is to be verified next, though blocks above it are in flight."""
        number = self.next_to_verify
        return number not in self._blocks and any(each > number for each in self._blocks)

    def begin(self, number: int, publisher: PublisherState, now_s: float) -> None:
        """The header of a missing block was accepted."""
        assert number not in self._blocks, "a block has one publisher at a time"
        # The first block of an empty node may be below the one that the node was configured for.
        if number < self._watermark.next_durable:
            self._watermark.begin_at(number)
            self.verify_again_from(number)
        block = self._blocks[number] = BlockInFlight(number, publisher, now_s + self._limits.block_s_max)
        self._begun += 1
        self.step(block, Change.ACCEPTED)

    def step(self, block: BlockInFlight, change: Change) -> tuple[Then, ...]:
        """Make one step of the table with this block. Returns what the caller has to do now."""
        block.stage, then = TRANSITIONS[block.stage, change]
        if block.stage is Stage.VERIFIED and change is Change.VERIFIED:
            self.next_to_verify = block.number + 1
        elif block.stage is Stage.MISSING or block.stage is Stage.OVER:
            del self._blocks[block.number]
            self._over += 1
            self._expired += change is Change.TIMED_OUT
            self._forget_items(block)
        elif change is Change.BEGUN_ANEW:
            # Items that are not wanted any more earn no time either.
            self._forget_items(block)
            block.deadline_s -= block.earned_s
            block.earned_s = 0.0
        return then

    def add(self, block: BlockInFlight, items: list[bytes], piece: Piece) -> None:
        """Items of the block have come."""
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
        """The plugins have the block now, and the time that they may take begins."""
        block.deadline_s = now_s + self._limits.processing_s_max

    def durable(self, number: int) -> bool:
        """This block is durable, and was not. Whether the watermark moved: over it, but never over a hole."""
        moved = self._watermark.durable(number)
        self.verified_below(self._watermark.next_durable)
        return moved

    def rest(self) -> None:
        """If nothing is in flight and nothing became durable, the next first header may begin the chain elsewhere."""
        if not self._blocks:
            self._watermark.forget_begin()
            self.verified_below(self._watermark.next_durable)

    def verified_below(self, number: int) -> None:
        """All blocks below this one are verified, the last of them not as blocks in flight."""
        self.next_to_verify = max(self.next_to_verify, number)

    def verify_again_from(self, number: int) -> None:
        """This block and those above it are to be verified anew; none of them is with the plugins."""
        self.next_to_verify = min(self.next_to_verify, number)

    def find_to_forward(self) -> BlockInFlight | None:
        """The lowest block that is not verified, if there is something of it to forward.

        Blocks above it wait, since a block that continues a bad one cannot be judged.
        """
        block = self._blocks.get(self.next_to_verify)
        return block if block is not None and (block.queue or block.stage is Stage.COMPLETE) else None

    def forward(self, block: BlockInFlight, now_s: float) -> ItemEvent:
        """The next event of the block that is to be forwarded; the runner publishes it at once."""
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
        """Give blocks more time whose publishers were not read from meanwhile."""
        for block in self._blocks.values():
            if block.stage is Stage.RECEIVING and block.publisher is not None and block.publisher.is_held:
                block.deadline_s += elapsed_s

    def late(self, now_s: float) -> Iterator[BlockInFlight]:
        """Blocks whose stage should have ended by now, lowest first. Blocks may leave meanwhile."""
        for block in self.all():
            is_late = block.stage is not Stage.COMPLETE and block.deadline_s <= now_s
            if is_late and self._blocks.get(block.number) is block:
                yield block

    def stalled(self, end: int) -> Iterator[BlockInFlight]:
        """Blocks below `end` that are still being received, lowest first. Blocks may leave meanwhile."""
        for block in self.all():
            if block.number < end and block.stage is Stage.RECEIVING and self._blocks.get(block.number) is block:
                yield block

    def _forget_items(self, block: BlockInFlight) -> None:
        """Items that were not forwarded are not wanted any more."""
        self.queued_bytes -= block.queued_bytes
        block.queue.clear()
        block.queued_bytes = 0

    def statistics(self) -> InFlightStatistics:
        return InFlightStatistics(len(self._blocks), self.queued_bytes, self._begun, self._over, self._expired)

    def check(self) -> None:
        """The invariant."""
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
