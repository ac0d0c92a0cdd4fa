"""The state machine of the blocks that publishers send, from the decision about a header until the block is durable;
and `Watermark`, the highest block up to which all blocks are durable.

`TRANSITIONS` lists the stages of a block, the changes between them and their consequences, which `publish_machine`
carries out.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from block_node.events import (
    EVENT_OVERHEAD_BYTES,
    ITEM_OVERHEAD_BYTES,
    BlockBegun,
    BlockEnded,
    ItemEvent,
    ItemsReceived,
)
from block_node.protocol import DurableBlock, Piece
from block_node.publish.session_machine import PublisherState


class PublishLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of publishing, for all publishers of the node.

    - block_s_max: the time from a block's header to its end. Time in which the node did not read does not count.
      Received items extend this time, by one second for every `earned_items_per_s` items and every `earned_bytes_per_s`
      bytes. So a block that is too large reaches the limits of size before this limit.
    - processing_s_max: the longest time for verifying a block, for storing it, and for a full plugin to take an event.
      If a plugin takes longer, the node itself has failed.
    - stall_blocks_max: the stream of a publisher ends if its block is more than this many numbers below a complete one,
      as by `producer.MaxFutureBlocksBeforeStalled` of the reference block node.
    - ahead_blocks_max, queued_bytes_max: the most blocks in flight, and received bytes that wait for the plugins. When
      either is reached, the node reads only from the publisher of the lowest block that is not verified.
    - resend_s: the interval at which the node requests a missing block again.
    - idle_s_max: a publisher that sends nothing for this long is disconnected. The reference block node waits as long.
    - slice_items_max, slice_bytes_max: how much is passed to the plugins, or read from one publisher, before other
      workers of the node run. Either takes some hundredths of a second.
    """

    sessions_max: int = 1_000
    block_s_max: float = 30.0
    earned_items_per_s: int = 50_000
    earned_bytes_per_s: int = 4 * 1024 * 1024
    processing_s_max: float = 60.0
    stall_blocks_max: int = 3
    ahead_blocks_max: int = 256
    queued_bytes_max: int = 32 * 1024 * 1024
    resend_s: float = 5.0
    idle_s_max: float = 7_200.0
    tick_s: float = 0.5
    slice_items_max: int = 8_192
    slice_bytes_max: int = 1024 * 1024


NAMED_MAX = 500
"""The most blocks that one acknowledgement lists. At 60 bytes per block, the list fits into a frame of 65,000 bytes,
the limit of the legacy framing. Publishers request other root hashes from the service `block_get`."""


class Watermark:
    """The highest block up to which all blocks are durable: `last_block`, which never falls. Until a block is durable,
    `begin_at` can set a lower first block than the configured one.

    Invariant: `above` has the durable blocks above `next_durable`, which is not durable.
    """

    def __init__(self, last_block: int | None, first_block: int) -> None:
        self._start = first_block if last_block is None else max(first_block, last_block + 1)
        self._begun = last_block == self._start - 1
        self.above: set[int] = set()
        self.last_block = last_block
        self.next_durable = self._start

    def begin_at(self, block_number: int) -> None:
        assert not self._begun, "a chain begins once"
        self.next_durable = block_number

    def forget_begin(self) -> None:
        if not self._begun:
            self.next_durable = self._start

    def durable(self, block_number: int) -> bool:
        """Notes that a block, not below `next_durable`, is durable. Returns whether the watermark rose."""
        self.above.add(block_number)
        before = self.next_durable
        while self.next_durable in self.above:
            self.above.remove(self.next_durable)
            self.last_block = self.next_durable
            self.next_durable += 1
            self._begun = True
        return self.next_durable != before

    def check(self) -> None:
        assert all(block_number > self.next_durable for block_number in self.above)
        assert self.last_block is None or self.last_block < self.next_durable


DurableRoot: TypeAlias = tuple[bytes, int | None]
"""The root hash of one durable block, and the session that sent it; None if it came from another source."""


class DurableRoots(dict[int, DurableRoot]):
    """The root hashes of the durable blocks that are not acknowledged yet: they show a publisher whether the node has
    stored another block with the same number.

    Invariant: all block numbers are above the last acknowledged block. There are at most NAMED_MAX of them.
    """

    def note(self, block_number: int, root: bytes, owner: int | None) -> None:
        """Notes a root hash, unless it is empty. Above NAMED_MAX, the root hash of the highest block is dropped."""
        if not root:
            return
        if len(self) >= NAMED_MAX and (highest := max(self)) > block_number:
            del self[highest]
        if len(self) < NAMED_MAX:
            self[block_number] = (root, owner)

    def take(self, last_block: int) -> dict[int, DurableRoot]:
        return {number: self.pop(number) for number in sorted(self) if number <= last_block}


def named(roots: dict[int, DurableRoot], session_id: int) -> list[DurableBlock]:
    """Converts root hashes to the block list of an acknowledgement to this session."""
    return [DurableBlock(number, root, owner == session_id) for number, (root, owner) in roots.items()]


class HeaderDecision(enum.Enum):
    """The answer to the header of a block. DUPLICATE: it is acknowledged already. SKIP: another publisher sends it, or
    the node has it. BEHIND: its number is too high for the node."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    SKIP = "skip"
    BEHIND = "behind"


class PublishView(msgspec.Struct, frozen=True):
    """The facts that decide the answer to a header.

    - last_block: the highest block up to which all blocks are verified and durable.
    - next_durable: the lowest block that is not durable.
    - taken: the blocks above `last_block` that are durable, in flight, or backfilled and being stored.
    - crowded: whether only the lowest missing block is accepted, because a limit is reached.
    """

    last_block: int | None
    next_durable: int
    taken: Collection[int]
    crowded: bool = False

    @property
    def wanted(self) -> int:
        block_number = self.next_durable
        while block_number in self.taken:
            block_number += 1
        return block_number

    @property
    def frontier(self) -> int:
        return max(self.taken, default=self.next_durable - 1) + 1

    @property
    def fresh(self) -> bool:
        """Whether no block of the chain has arrived yet. Only then may the first block be lower than configured."""
        return not self.taken and (self.last_block is None or self.last_block < self.next_durable - 1)


def decide(block_number: int, view: PublishView) -> HeaderDecision:
    """Decides the answer to a header, by specs/block_publish.md, "Base Protocol", and by a rule for several publishers:
    the first publisher to send the header of a block sends the block, and all others skip it."""
    if view.last_block is not None and block_number <= view.last_block:
        return HeaderDecision.DUPLICATE
    if block_number in view.taken:
        return HeaderDecision.SKIP
    if block_number < view.next_durable:
        return HeaderDecision.ACCEPT if view.fresh else HeaderDecision.SKIP
    if block_number > view.frontier or (view.crowded and block_number != view.wanted):
        return HeaderDecision.BEHIND
    return HeaderDecision.ACCEPT


class Stage(enum.Enum):
    """The stage of a block.

    - RECEIVING: the items of the block are arriving.
    - COMPLETE: all items have arrived, and wait for earlier blocks or for room in the plugins.
    - VERIFYING: the plugins have all items. VERIFIED: the block has passed verification and is being stored.
    - OVER: the block is stored or was backfilled. Publishers have nothing more to do with it.
    """

    MISSING = "missing"
    RECEIVING = "receiving"
    COMPLETE = "complete"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    OVER = "over"


class BlockChange(enum.Enum):
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
    """A consequence of a change: the plugins forget the items (DROP); the block loses its publisher (ORPHAN); the items
    that the publisher still sends are ignored (DISCARD); the publisher is asked to continue with the next block (SKIP);
    its stream ends (END_STREAM)."""

    DROP = "drop"
    ORPHAN = "orphan"
    DISCARD = "discard"
    SKIP = "skip"
    END_STREAM = "end stream"


class BlockStep(NamedTuple):
    stage: Stage
    then: tuple[Then, ...] = ()


_MISSING, _RECEIVING, _COMPLETE = Stage.MISSING, Stage.RECEIVING, Stage.COMPLETE
_VERIFYING, _VERIFIED, _OVER = Stage.VERIFYING, Stage.VERIFIED, Stage.OVER

TRANSITIONS: dict[tuple[Stage, BlockChange], BlockStep] = {
    # The answer to a header decides whether a missing block begins.
    (_MISSING, BlockChange.ACCEPTED): BlockStep(_RECEIVING),
    # The publisher still sends this block. If the block ends early, its session discards the rest.
    (_RECEIVING, BlockChange.BEGUN_ANEW): BlockStep(_RECEIVING, (Then.DROP,)),
    (_RECEIVING, BlockChange.ENDED): BlockStep(_COMPLETE),
    (_RECEIVING, BlockChange.REFUSED): BlockStep(_MISSING, (Then.DISCARD, Then.END_STREAM)),
    (_RECEIVING, BlockChange.SUPERSEDED): BlockStep(_MISSING, (Then.DISCARD,)),
    (_RECEIVING, BlockChange.BACKFILLED): BlockStep(_OVER, (Then.DISCARD, Then.SKIP, Then.DROP)),
    (_RECEIVING, BlockChange.STORED): BlockStep(_OVER, (Then.DISCARD, Then.SKIP, Then.DROP)),
    (_RECEIVING, BlockChange.PUBLISHER_WENT_ON): BlockStep(_MISSING, (Then.DROP,)),
    (_RECEIVING, BlockChange.PUBLISHER_LEFT): BlockStep(_MISSING, (Then.DROP,)),
    (_RECEIVING, BlockChange.EVICTED): BlockStep(_MISSING, (Then.DISCARD, Then.DROP)),
    (_RECEIVING, BlockChange.TIMED_OUT): BlockStep(_MISSING, (Then.DROP, Then.END_STREAM)),
    (_RECEIVING, BlockChange.NODE_FAILED): BlockStep(_MISSING),
    # All items are here, so the block can do without its publisher.
    (_COMPLETE, BlockChange.FORWARDED): BlockStep(_VERIFYING),
    (_COMPLETE, BlockChange.REFUSED): BlockStep(_MISSING, (Then.END_STREAM,)),
    (_COMPLETE, BlockChange.SUPERSEDED): BlockStep(_MISSING),
    (_COMPLETE, BlockChange.BACKFILLED): BlockStep(_OVER, (Then.DROP,)),
    (_COMPLETE, BlockChange.STORED): BlockStep(_OVER, (Then.DROP,)),
    (_COMPLETE, BlockChange.EVICTED): BlockStep(_MISSING, (Then.DROP,)),
    (_COMPLETE, BlockChange.PUBLISHER_LEFT): BlockStep(_COMPLETE, (Then.ORPHAN,)),
    (_COMPLETE, BlockChange.NODE_FAILED): BlockStep(_MISSING),
    # The plugins have all items. A refusal makes them forget the block, so nothing is dropped.
    (_VERIFYING, BlockChange.VERIFIED): BlockStep(_VERIFIED),
    (_VERIFYING, BlockChange.REFUSED): BlockStep(_MISSING, (Then.END_STREAM,)),
    (_VERIFYING, BlockChange.SUPERSEDED): BlockStep(_MISSING),
    (_VERIFYING, BlockChange.BACKFILLED): BlockStep(_OVER, (Then.DROP,)),
    (_VERIFYING, BlockChange.STORED): BlockStep(_OVER, (Then.DROP,)),
    (_VERIFYING, BlockChange.PUBLISHER_LEFT): BlockStep(_VERIFYING, (Then.ORPHAN,)),
    (_VERIFYING, BlockChange.NODE_FAILED): BlockStep(_MISSING),
    # The block is being stored, and no one has to forget anything.
    (_VERIFIED, BlockChange.BACKFILLED): BlockStep(_OVER),
    (_VERIFIED, BlockChange.STORED): BlockStep(_OVER),
    (_VERIFIED, BlockChange.PUBLISHER_LEFT): BlockStep(_VERIFIED, (Then.ORPHAN,)),
    (_VERIFIED, BlockChange.NODE_FAILED): BlockStep(_MISSING),
}
"""For each stage and change, the next stage and the consequences. A pair that is not listed cannot happen."""


class ReceivedItems(NamedTuple):
    """The items of one message from a publisher. held_bytes: their memory in the queue, including the overhead."""

    items: list[bytes]
    piece: Piece
    size_bytes: int
    held_bytes: int


class BlockInFlight(msgspec.Struct, eq=False):
    """A block whose header was accepted and which is not durable yet.

    - publisher: None if it has disconnected after all items arrived.
    - queue: received items that the plugins do not have yet.
    - attempt: identifies the forwarded items (`BlockBegun.attempt`). 0 before the first.
    - deadline_s: when the present stage must have ended; unused in COMPLETE. earned_s: seconds that items have added.
    - root: the root hash of a verified block.

    Invariant: `queued_bytes` is the sum of `held_bytes` over `queue`.
    """

    number: int
    publisher: PublisherState | None
    deadline_s: float
    stage: Stage = Stage.MISSING
    queue: deque[ReceivedItems] = msgspec.field(default_factory=deque)
    queued_bytes: int = 0
    attempt: int = 0
    earned_s: float = 0.0
    root: bytes = b""


class InFlightStatistics(msgspec.Struct, frozen=True):
    """The blocks in flight, and since the start of the node: `begun` blocks were accepted, `over` are not in flight any
    more, `expired` were taken away from slow publishers."""

    blocks: int
    queued_bytes: int
    begun: int
    over: int
    expired: int


class Blocks(dict[int, BlockInFlight]):
    """All blocks in flight on one node, by their numbers.

    next_to_verify: the block whose items go to the plugins. All lower blocks are verified.
    queued_bytes: the memory of all received items that were not forwarded to the plugins.

    Invariant (`check`): a block in flight is listed under its own number, and is not durable. It is VERIFIED exactly if
    its number is below `next_to_verify`. The plugins have no items of a higher block. All blocks below `next_durable`
    are verified. Every block that was begun is in flight or counted as over.
    """

    def __init__(self, limits: PublishLimits, watermark: Watermark) -> None:
        super().__init__()
        self._limits = limits
        self.watermark = watermark
        self._attempts = 0
        self.next_to_verify = watermark.next_durable
        self.queued_bytes = 0
        self._begun = self._over = self._expired = 0

    def all(self) -> list[BlockInFlight]:
        """Returns the blocks in a new list, ordered by number, so that the caller may remove blocks."""
        return [self[number] for number in sorted(self)]

    @property
    def next_block(self) -> int:
        """The lowest block that no publisher sends and that the node does not have. Equal to `PublishView.wanted`."""
        # Nobody has to send a block that is in flight, or durable above a gap.
        number = self.next_to_verify
        while number in self or number in self.watermark.above:
            number += 1
        return number

    @property
    def awaited(self) -> int | None:
        """The lowest block that is not durable, if it was backfilled and is being stored; else None."""
        number = self.watermark.next_durable
        return number if number < self.next_to_verify and number not in self else None

    @property
    def view(self) -> PublishView:
        mark = self.watermark
        taken = {*mark.above, *self}
        # A backfilled block that is being stored is not in flight, but publishers need not send it either.
        taken.update(range(mark.next_durable, self.next_to_verify))
        return PublishView(mark.last_block, mark.next_durable, taken, self.is_crowded)

    @property
    def is_crowded(self) -> bool:
        """Whether the limit of blocks or bytes in flight is reached: only the lowest missing block is accepted."""
        limits = self._limits
        return self.queued_bytes >= limits.queued_bytes_max or len(self) >= limits.ahead_blocks_max

    @property
    def has_gap(self) -> bool:
        """Whether no publisher sends the next block to verify, although blocks with higher numbers are in flight."""
        number = self.next_to_verify
        return number not in self and any(each > number for each in self)

    def begin(self, number: int, publisher: PublisherState, now_s: float) -> None:
        assert number not in self, "a block has one publisher at a time"
        # The first block of an empty node may have a lower number than the configured first block.
        if number < self.watermark.next_durable:
            self.watermark.begin_at(number)
            self.verify_again_from(number)
        block = self[number] = BlockInFlight(number, publisher, now_s + self._limits.block_s_max)
        self._begun += 1
        self.step(block, BlockChange.ACCEPTED)

    def step(self, block: BlockInFlight, change: BlockChange) -> tuple[Then, ...]:
        """Makes one step of the transition table. Returns the consequences, which the caller must carry out."""
        # A pair that the table does not have is a mistake of this node, and raises KeyError.
        block.stage, then = TRANSITIONS[block.stage, change]
        if block.stage is Stage.VERIFIED and change is BlockChange.VERIFIED:
            # Each block needs the result of the block before it, so verification goes on with the next number only now.
            self.next_to_verify = block.number + 1
        elif block.stage is Stage.MISSING or block.stage is Stage.OVER:
            # In these two stages no publisher sends the block. It is no longer in progress, and its memory is free.
            del self[block.number]
            self._over += 1
            self._expired += change is BlockChange.TIMED_OUT
            self._forget_items(block)
        elif change is BlockChange.BEGUN_ANEW:
            # The time that the dropped items added to the deadline is subtracted.
            self._forget_items(block)
            block.deadline_s -= block.earned_s
            block.earned_s = 0.0
        return then

    def add(self, block: BlockInFlight, items: list[bytes], piece: Piece) -> None:
        limits, count = self._limits, len(items)
        size_bytes = sum(map(len, items))
        held_bytes = size_bytes + ITEM_OVERHEAD_BYTES * count + EVENT_OVERHEAD_BYTES
        block.queue.append(ReceivedItems(items, piece, size_bytes, held_bytes))
        block.queued_bytes += held_bytes
        self.queued_bytes += held_bytes
        # A large block gets more time, so that it reaches the limits of size before the limit of time.
        earned_s = count / limits.earned_items_per_s + held_bytes / limits.earned_bytes_per_s
        block.earned_s += earned_s
        block.deadline_s += earned_s

    def allow_processing(self, block: BlockInFlight, now_s: float) -> None:
        block.deadline_s = now_s + self._limits.processing_s_max

    def durable(self, number: int) -> bool:
        # A durable block was verified, perhaps from another source.
        moved = self.watermark.durable(number)
        self.verified_below(self.watermark.next_durable)
        return moved

    def rest(self) -> None:
        """Forgets the first block that an earlier header has set, unless a block is in flight or durable."""
        if not self:
            self.watermark.forget_begin()
            self.verified_below(self.watermark.next_durable)

    def verified_below(self, number: int) -> None:
        self.next_to_verify = max(self.next_to_verify, number)

    def verify_again_from(self, number: int) -> None:
        """Lowers `next_to_verify` to `number`. The plugins must have no items of blocks from this number on."""
        self.next_to_verify = min(self.next_to_verify, number)

    def find_to_forward(self) -> BlockInFlight | None:
        block = self.get(self.next_to_verify)
        return block if block is not None and (block.queue or block.stage is Stage.COMPLETE) else None

    def forward(self, block: BlockInFlight, now_s: float) -> ItemEvent:
        """Takes the next event for the plugins out of the block, which the caller must publish at once."""
        # The plugins know the items by the attempt, so results about dropped items can be recognized.
        if not block.attempt:
            self._attempts += 1
            block.attempt = self._attempts
            return BlockBegun(block.number, block.attempt)
        # Items count as queued until an event hands them over.
        if block.queue:
            received = block.queue.popleft()
            block.queued_bytes -= received.held_bytes
            self.queued_bytes -= received.held_bytes
            return ItemsReceived(block.number, block.attempt, received.items, received.size_bytes, received.piece)
        # All items are forwarded. From now on the deadline is that of the plugins.
        self.step(block, BlockChange.FORWARDED)
        self.allow_processing(block, now_s)
        return BlockEnded(block.number, block.attempt)

    def extend_held(self, elapsed_s: float) -> None:
        """Adds `elapsed_s` seconds to the deadline of each block whose publisher was not read during this time."""
        for block in self.values():
            if block.stage is Stage.RECEIVING and block.publisher is not None and block.publisher.is_held:
                block.deadline_s += elapsed_s

    def late(self, now_s: float) -> Iterator[BlockInFlight]:
        """Yields the blocks whose deadline has passed, lowest first. The caller may remove blocks meanwhile."""
        for block in self.all():
            is_late = block.stage is not Stage.COMPLETE and block.deadline_s <= now_s
            if is_late and self.get(block.number) is block:
                yield block

    def stalled(self, end: int) -> Iterator[BlockInFlight]:
        """Yields the blocks below `end` that are still arriving, lowest first. The caller may remove blocks."""
        for block in self.all():
            if block.number < end and block.stage is Stage.RECEIVING and self.get(block.number) is block:
                yield block

    def _forget_items(self, block: BlockInFlight) -> None:
        self.queued_bytes -= block.queued_bytes
        block.queue.clear()
        block.queued_bytes = 0

    def statistics(self) -> InFlightStatistics:
        return InFlightStatistics(len(self), self.queued_bytes, self._begun, self._over, self._expired)

    def check(self) -> None:
        # The numbers agree: durable blocks are verified, and `PublishView` computes the same next block.
        self.watermark.check()
        assert self.watermark.next_durable <= self.next_to_verify
        assert self.next_block == self.view.wanted
        # No block and no byte was lost or counted twice.
        assert self._begun - self._over == len(self), "a block was lost, or ended twice"
        assert self.queued_bytes == sum(block.queued_bytes for block in self.values())
        # Each block in flight is listed under its number, and the plugins have no block above the next one.
        for number, block in self.items():
            assert block.number == number >= self.watermark.next_durable
            assert number not in self.watermark.above
            assert block.queued_bytes == sum(received.held_bytes for received in block.queue)
            assert (block.stage is Stage.VERIFIED) == (number < self.next_to_verify)
            assert not block.attempt or number <= self.next_to_verify
