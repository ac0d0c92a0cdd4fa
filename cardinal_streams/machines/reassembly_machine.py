"""The reassembly machine: it takes messages in any order, any number of times, and returns each complete block once.

It does no I/O, reads no bytes of messages, and has no part in the chain. The table shows what each message does in each
state of its block (specification, "Consumers" of each message):

    state       Batch         SubBatchHeader   SubBatchMsg   BatchMsg      BatchDeleteMsg
    EARLY       open          keep             keep          keep          keep
    OPEN        duplicate     take             take          take          take
    FINISHED    late          late             late          late          late

A block is EARLY after its first message, OPEN after its Batch message (the list of its contents), and FINISHED when it
is complete or given up as too old (`set_floor`). Only the first Batch, header, item or key is used. The hashes of the
last `finished_max` finished blocks are remembered; an older block is returned a second time if it is delivered again.

Memory. Beyond `incomplete_max` blocks or `incomplete_bytes_max` bytes, blocks are put off: dropped, with a note from
which offsets their messages must be read again (`put_off`). A block is given up after `idle_messages_max` messages of
other blocks, since a late duplicate can begin a block that never becomes complete; if a new message of it comes
nevertheless, it is put off. A block that exceeds `incomplete_bytes_max` alone is given up for good, but still counts as
incomplete, so that a consumer with a higher limit reads it again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from cardinal_streams.limits import DEFAULT_REASSEMBLY_LIMITS, ReassemblyLimits, RecentMap
from cardinal_streams.machines.events import (
    FIRST_REFUSAL,
    OLD,
    TAKEN,
    Completed,
    Evicted,
    EvictionReason,
    Missing,
    MissingState,
    Outdated,
    ReassemblyEvent,
    ReassemblyStatistics,
    Receipt,
    Refused,
)
from cardinal_streams.machines.pending_block import GivenUp, PendingBlock, name_of_item
from cardinal_streams.message.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Ping,
    Reorg,
    ReorgAbandoned,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
)
from cardinal_streams.prefixes import TRACK_ALL, Tracked

NOTHING: tuple[ReassemblyEvent, ...] = ()
# If a message of a given-up block comes, the block is recalled (read again) only after this many further messages, so
# that one reading serves several blocks.
RECALL_MESSAGES = 10_000


class PutOff:
    """The blocks that were dropped to save memory, and that must be read again."""

    def __init__(self, hashes_max: int) -> None:
        self._hashes_max = hashes_max
        # By source, the lowest offset of a message of these blocks; and their hashes, or None if there are too many.
        self.position: dict[str, int] = {}
        self.hashes: set[bytes] | None = set()

    def add(self, hash_: bytes, offsets: Mapping[str, int]) -> None:
        if self.hashes is not None:
            self.hashes.add(hash_)
            if len(self.hashes) > self._hashes_max:
                self.hashes = None
        for source, offset in offsets.items():
            self.position[source] = min(offset, self.position.get(source, offset))


class Reassembler:
    """The reassembly machine: it takes messages and returns each complete block once; see the module's docstring.

    Invariant: a hash is in `_blocks` (EARLY or OPEN blocks) or in `_finished`, never in both. `_bytes` is the sum of
        the sizes of the blocks in `_blocks`."""

    def __init__(
        self,
        tracked: Tracked = TRACK_ALL,
        limits: ReassemblyLimits = DEFAULT_REASSEMBLY_LIMITS,
        *,
        keeps_oldest: bool = False,
    ) -> None:
        self.tracked = tracked
        self.limits = limits
        self.keeps_oldest = keeps_oldest
        self.put_off = PutOff(limits.finished_max)
        self._given_up: RecentMap[bytes, GivenUp] = RecentMap(limits.finished_max)
        # Below this number of blocks or bytes there is room to read put-off blocks again. None: no block is put off.
        self._room_at: tuple[float, float] | None = None
        # The blocks that were incomplete when the log was read to its end the last time.
        self._incomplete_before: frozenset[bytes] = frozenset()
        # After this number of messages, the blocks that got a message after they were given up are read again.
        self._recall_at = math.inf
        # The blocks that are read again. They are not given up, so that each reading of the log completes some.
        self._read_again: RecentMap[bytes, None] = RecentMap(limits.finished_max)
        self._gives_idle_up = True
        self._blocks_max, self._bytes_max = limits.incomplete_max, limits.incomplete_bytes_max
        self._blocks: OrderedDict[bytes, PendingBlock] = OrderedDict()
        self._finished: RecentMap[bytes, None] = RecentMap(limits.finished_max)
        self._high_water: dict[str, int] = {}
        self._bytes = 0
        self._floor = (0, 0)
        self._floor_scanned = self._floor
        self._messages_scanned = 0
        self._idle_check_at = limits.idle_messages_max + 1
        self._messages = self._completed = self._pings = self._old = 0
        self._evicted = dict.fromkeys(EvictionReason, 0)
        self._outcomes = [0] * len(Receipt)

    def receive(self, message: Message, source: str = "", offset: int = 0) -> Sequence[ReassemblyEvent]:
        """Takes a message, and returns the events that it causes.

        `source` is the name of the message's partition ("topic:partition"), and `offset` is the message's offset in it.
        Messages of the Reorg protocol do not belong to a block, and are returned unchanged. A Ping is only counted."""
        self._messages += 1
        if offset > self._high_water.get(source, -1):
            self._high_water[source] = offset
        # 1. A message that belongs to no block is passed on.
        kind = type(message)
        if kind in _OF_NO_BLOCK:
            if isinstance(message, Reorg | ReorgComplete | ReorgAbandoned):
                return (message,)
            self._pings += 1
            return NOTHING
        # 2. Find the block, or begin one. A finished block, or one that was too large, takes nothing.
        of_block: Any = message
        block = self._blocks.get(of_block.hash)
        if block is None or block.is_too_large:
            if block is not None or of_block.hash in self._finished:
                self._outcomes[Receipt.LATE] += 1
                return NOTHING
            block = PendingBlock(of_block.hash, self._messages)
            self._blocks[block.hash] = block
        # 3. Note where the block begins in this source: from there it is read again after a restart.
        known = block.offsets.get(source)
        if known is None or offset < known:
            block.offsets[source] = offset
        # 4. Take the message. The block knows whether it is EARLY or OPEN, and step 2 has answered for FINISHED.
        before = block.size_bytes
        events: list[ReassemblyEvent] = []
        outcome = ACTIONS[kind](self, block, of_block, events)
        self._outcomes[outcome] += 1
        # Most messages are taken, and comparing an identity is the cheaper of the two.
        if outcome is not TAKEN and outcome >= FIRST_REFUSAL:
            events.append(Refused(block.hash, outcome, _name_of(message)))
        self._bytes += block.size_bytes - before
        # 5. A message of a block that was given up calls for all its earlier messages.
        if self._given_up:
            self._recall(block, source, offset)
        self._settle(block, outcome, events)
        return events

    def skip(self, source: str, offset: int) -> None:
        """Counts a message that the caller has recognised as part of a finished block."""
        self._messages += 1
        self._outcomes[Receipt.LATE] += 1
        if offset > self._high_water.get(source, -1):
            self._high_water[source] = offset

    def why_incomplete(self, hash_: bytes) -> Missing:
        """Returns the messages that the block with this hash lacks."""
        block = self._blocks.get(hash_) or self._given_up.get(hash_)
        if block is not None:
            return block.missing()
        return Missing(MissingState.NOTHING if hash_ in self._finished else MissingState.UNKNOWN)

    def may_read_again(self, *, at_end: bool) -> bool:
        """Whether to read the blocks again now that were put off. `at_end`: whether the log was read to its end."""
        room = self._room_at
        # Recalled blocks wait for a while, so that one reading serves several of them.
        if self._recall_at < math.inf and (at_end or self._messages >= self._recall_at):
            return True
        if room is None:
            return False
        # Half of the memory is free again.
        if len(self._blocks) < room[0] or self._bytes < room[1]:
            return True
        if not at_end:
            return False
        # At the end of the log, reading again helps only if other blocks are incomplete than at the last end.
        incomplete = frozenset(self._blocks)
        if incomplete == self._incomplete_before:
            # Each block here lacks a message that the log does not have. Without a Batch, it is perhaps no block.
            return self._give_up_early()
        self._incomplete_before = incomplete
        return True

    def lacks(self, hashes: Iterable[bytes]) -> bool:
        """Whether one of these blocks was put off or given up. True if too many were put off to be named."""
        put_off = self.put_off.hashes
        return put_off is None or any(hash_ in put_off or hash_ in self._given_up for hash_ in hashes)

    def begin_again(self, sources: Iterable[str]) -> PutOff:
        """Forgets how far these sources were read, because they are read again. Returns the put-off blocks so far."""
        for source in sources:
            self._high_water.pop(source, None)
        put_off, self.put_off = self.put_off, PutOff(self.limits.finished_max)
        for hash_ in put_off.hashes or ():
            self._read_again.put(hash_, None)
        # While it is unknown which blocks are read again, no block is given up as idle: it could be one of them.
        self._gives_idle_up = put_off.hashes is not None
        self._room_at, self._recall_at = None, math.inf
        return put_off

    def given_up(self) -> dict[bytes, dict[str, int]]:
        """Returns, by hash, the offsets of the blocks that were given up and can still become complete."""
        return {hash_: block.offsets for hash_, block in self._given_up.items()}

    def resume_given_up(self, given_up: Mapping[bytes, Mapping[str, int]], read: Mapping[str, int]) -> None:
        """Continues with the blocks that were given up before a restart. `read`: by source, how far it was read."""
        for hash_, offsets in given_up.items():
            high_water = {source: end - 1 for source, end in read.items()}
            self._given_up.put(hash_, GivenUp(dict(offsets), high_water, Missing(MissingState.UNKNOWN), True))

    def incomplete(self) -> Iterator[bytes]:
        """Returns the hashes of all incomplete blocks, first the block that has waited longest for a message."""
        return iter(tuple(self._blocks))

    def children_of(self, hash_: bytes) -> list[bytes]:
        """Returns the incomplete blocks that are known to follow this block."""
        return [
            block.hash for block in self._blocks.values() if block.batch is not None and block.batch.parent == hash_
        ]

    def has_finished(self, hash_: bytes) -> bool:
        """Whether this block is remembered as finished: complete, or given up as too old."""
        return hash_ in self._finished

    def forget(self, hash_: bytes) -> None:
        """Forgets that a block is finished. The block is returned again if its messages are delivered again."""
        self._finished.pop(hash_, None)

    def set_floor(self, number: int, weight: int) -> Sequence[Outdated]:
        """Sets which blocks are too old: those with a number below `number` and a weight of at most `weight`. They are
        dropped when their Batch message arrives. Returns an event for each block that this call has dropped."""
        self._floor = floor = (number, weight)
        # Also drops blocks whose Batch message is there. That visits all incomplete blocks, so it waits until as many
        # messages have arrived.
        if floor != self._floor_scanned and self._messages - self._messages_scanned >= len(self._blocks):
            self._floor_scanned = floor
            self._messages_scanned = self._messages
            blocks = tuple(self._blocks.values())
            return [self._drop_old(block) for block in blocks if block.batch is not None and self._is_old(block.batch)]
        return ()

    def close(self) -> Sequence[ReassemblyEvent]:
        """Evicts all incomplete blocks. Returns an event for each of them."""
        return [self._evict(block, EvictionReason.CLOSED) for block in tuple(self._blocks.values())]

    def low_water(self) -> dict[str, int]:
        """Returns, by source (`topic:partition`), the lowest offset of a message of an incomplete block."""
        lowest: dict[str, int] = {}
        for block in self._blocks.values():
            for source, offset in block.offsets.items():
                lowest[source] = min(offset, lowest.get(source, offset))
        return lowest

    def high_water(self) -> dict[str, int]:
        """Returns, by source (`topic:partition`), the highest offset that was delivered."""
        return dict(self._high_water)

    def statistics(self) -> ReassemblyStatistics:
        outcomes = self._outcomes
        return ReassemblyStatistics(
            messages=self._messages,
            completed=self._completed,
            duplicates=outcomes[Receipt.DUPLICATE],
            late=outcomes[Receipt.LATE],
            untracked=outcomes[Receipt.UNTRACKED],
            refused=sum(outcomes[FIRST_REFUSAL:]),
            pings=self._pings,
            old=self._old,
            evicted=dict(self._evicted),
            incomplete=len(self._blocks),
            incomplete_bytes=self._bytes,
        )

    def check(self) -> None:
        """Raises AssertionError if the invariant of the class does not hold, or if a limit is exceeded."""
        assert self._bytes == sum(block.size_bytes for block in self._blocks.values())
        assert not [hash_ for hash_ in self._blocks if hash_ in self._finished]
        assert len(self._blocks) <= self.limits.incomplete_max
        assert self._bytes <= self.limits.incomplete_bytes_max
        assert all(block.batch is None or block.missing_count > 0 for block in self._blocks.values())
        assert len(self._given_up) <= self.limits.finished_max

    def _settle(self, block: PendingBlock, outcome: Receipt, events: list[ReassemblyEvent]) -> None:
        """Ends the work on one message: returns the block if it is complete, and evicts blocks beyond the limits."""
        if block.batch is not None and block.missing_count == 0:
            # The hash moves from `_blocks` to `_finished`, so repetitions of its messages are late.
            self._drop(block)
            self._given_up.pop(block.hash, None)
            self._finished.put(block.hash, None)
            self._completed += 1
            events.append(Completed(block.finish(self.tracked)))
        elif outcome is OLD:
            events.append(self._drop_old(block))
        else:
            # The blocks are in the order of their last message: the first one is the one that has waited longest.
            self._blocks.move_to_end(block.hash)
            block.touched = self._messages
            while self._bytes > self._bytes_max or len(self._blocks) > self._blocks_max:
                self._make_room(block, events)
            # The check is made only at the message at which the first block can become idle.
            if self._messages >= self._idle_check_at and self._gives_idle_up:
                self._evict_idle(events)

    def _make_room(self, last: PendingBlock, events: list[ReassemblyEvent]) -> None:
        """Puts one block off. `last`: the block of the last message."""
        if last.size_bytes > self._bytes_max:
            # No other block can make room for this one. It stays as incomplete, without its contents.
            last.is_too_large = True
            self._bytes -= last.size_bytes
            self._evicted[EvictionReason.MEMORY] += 1
            events.append(Evicted(last.hash, EvictionReason.MEMORY, last.missing()))
            last.empty()
            return
        # While it is unknown which blocks can become complete at all, the one that has waited longest for a message
        # goes: those whose other messages are deleted never can. Later the newest blocks go, first those without a
        # Batch message, then those with the highest numbers, so that the blocks that are needed first stay, and each
        # reading of the log completes some. A block that has just begun is found without a search.
        if not self.keeps_oldest:
            victim = next(block for block in self._blocks.values() if not block.is_too_large)
        elif last.batch is None and last.born == self._messages:
            victim = last
        else:
            victim = max(self._blocks.values(), key=PendingBlock.rank)
        self._drop(victim)
        self._evicted[EvictionReason.MEMORY] += 1
        self.put_off.add(victim.hash, victim.offsets)
        # A block is read again from its first message, which may have come before the block was given up.
        given_up = self._given_up.pop(victim.hash, None)
        if given_up is not None:
            self.put_off.add(victim.hash, given_up.offsets)
        # Put-off blocks are read again when half of this memory is free. Else the same blocks would be put off again.
        self._room_at = (len(self._blocks) / 2, self._bytes / 2)

    def _recall(self, block: PendingBlock, source: str, offset: int) -> None:
        """Puts off a block that was given up, if a message of it has come since: it must be read from its beginning."""
        given_up = self._given_up.get(block.hash)
        if given_up is None or offset <= given_up.high_water.get(source, -1):
            return
        # Without a Batch message, the hash is perhaps not that of a block.
        if block.batch is not None or given_up.is_open:
            del self._given_up[block.hash]
            self.put_off.add(block.hash, given_up.offsets)
            self._recall_at = min(self._recall_at, self._messages + RECALL_MESSAGES)

    def _evict_idle(self, events: list[ReassemblyEvent]) -> None:
        for block in tuple(self._blocks.values()):
            # The blocks after this one have waited less, so the next check is due when this block is idle.
            if block.touched + self.limits.idle_messages_max >= self._messages:
                self._idle_check_at = block.touched + self.limits.idle_messages_max + 1
                return
            if not block.is_too_large and block.hash not in self._read_again:
                if len(self._given_up) >= self.limits.finished_max:
                    # No more given-up blocks can be remembered, so this block stays in memory.
                    self._idle_check_at = self._messages + self.limits.idle_messages_max
                    return
                self._give_up(block)
                events.append(self._evict(block, EvictionReason.IDLE))

    def _give_up_early(self) -> bool:
        # No more blocks than can be remembered as given up: a forgotten block could not be recalled.
        room = self.limits.finished_max - len(self._given_up)
        early = [block for block in self._blocks.values() if block.batch is None][: max(room, 0)]
        for block in early:
            self._give_up(block)
            self._evict(block, EvictionReason.IDLE)
        return bool(early)

    def _give_up(self, block: PendingBlock) -> None:
        offsets = dict(block.offsets)
        # A block can be given up twice. It begins where it began the first time.
        before = self._given_up.get(block.hash)
        if before is not None:
            for source, offset in before.offsets.items():
                offsets[source] = min(offset, offsets.get(source, offset))
        known = GivenUp(offsets, dict(self._high_water), block.missing(), block.batch is not None)
        self._given_up.put(block.hash, known)

    def _is_old(self, batch: Batch) -> bool:
        return batch.number < self._floor[0] and batch.weight <= self._floor[1]

    def _evict(self, block: PendingBlock, reason: EvictionReason) -> Evicted:
        self._drop(block)
        self._evicted[reason] += 1
        return Evicted(block.hash, reason, block.missing())

    def _drop_old(self, block: PendingBlock) -> Outdated:
        self._drop(block)
        self._given_up.pop(block.hash, None)
        self._finished.put(block.hash, None)
        self._old += 1
        return Outdated(block.hash)

    def _drop(self, block: PendingBlock) -> None:
        del self._blocks[block.hash]
        self._bytes -= block.size_bytes

    def _open(self, block: PendingBlock, message: Batch, events: list[ReassemblyEvent]) -> Receipt:
        if block.batch is not None:
            return Receipt.DUPLICATE
        if self._is_old(message):
            return OLD
        # Reading can continue from here after the block: see `CompleteBatch.resumption`.
        block.high_water = dict(self._high_water)
        for outcome, what in block.open(message, self.tracked):
            self._note(block, outcome, what, events)
        return TAKEN

    def _take_header(self, block: PendingBlock, message: SubBatchHeader, events: list[ReassemblyEvent]) -> Receipt:
        outcome, beyond = block.take_header(message.id, message.item_count)
        for index in beyond:
            self._note(block, Receipt.NO_SUCH_ITEM, name_of_item(message.id, index), events)
        return outcome

    def _note(self, block: PendingBlock, outcome: Receipt, what: str, events: list[ReassemblyEvent]) -> None:
        """Counts a message that came before its Batch or header and cannot be used. Reports a message that contradicts
        these."""
        if outcome is not TAKEN:
            self._outcomes[outcome] += 1
        if outcome >= FIRST_REFUSAL:
            events.append(Refused(block.hash, outcome, what))


def _name_of(message: Message) -> str:
    """Returns the name of a refused message for its event."""
    match message:
        case SubBatchHeader():
            return message.id.hex()
        case SubBatchMsg():
            return name_of_item(message.id, message.index)
        case BatchMsg() | BatchDeleteMsg():
            return message.key
    raise AssertionError(f"a {type(message).__name__} is never refused")


Action: TypeAlias = Callable[[Reassembler, PendingBlock, Any, list[ReassemblyEvent]], Receipt]

ACTIONS: Mapping[type[Message], Action] = {
    Batch: Reassembler._open,
    SubBatchHeader: Reassembler._take_header,
    SubBatchMsg: lambda machine, block, message, events: block.take_item(message),
    BatchMsg: lambda machine, block, message, events: block.take_value(message.key, message.value),
    BatchDeleteMsg: lambda machine, block, message, events: block.take_delete(message.key),
}
_OF_NO_BLOCK = frozenset((Reorg, ReorgComplete, ReorgAbandoned, Ping))
