"""The data types of the fill machine (`fill_machine`): running requests, and the blocks that were passed on."""

from __future__ import annotations

from collections.abc import Iterator, Set

import msgspec

from block_node.backfill.settings import BackfillSettings
from block_node.persist.ranges import BlockRanges, NumberRange

GENTLE_BYTES = 256 * 1024
"""The largest size of one request while publishers are connected: processing it takes a few milliseconds."""
SIZE_FADES = 0.98


class Pending(msgspec.Struct):
    """A block that was passed on and is not stored yet. since_s: when it was passed on, or last reported as overdue."""

    source: str
    size_bytes: int
    since_s: float
    verified: bool = False
    waits: int = 0


class Delivered(dict[int, Pending]):
    @property
    def size_bytes(self) -> int:
        return sum(pending.size_bytes for pending in self.values())

    @property
    def all_verified(self) -> bool:
        return all(pending.verified for pending in self.values())

    def has_room(self, limits: BackfillSettings) -> bool:
        return len(self) < limits.pending_blocks and self.size_bytes < limits.pending_bytes

    def overdue(self, now_s: float, processing_s_max: float) -> list[int]:
        """Returns the blocks that were not stored within this time, which then starts again."""
        found = [number for number, pending in self.items() if now_s - pending.since_s >= processing_s_max]
        for number in found:
            self[number].since_s = now_s
            self[number].waits += 1
        return found


class BatchSize:
    """Chooses how many blocks the next request asks for. Invariant: 1 <= `_blocks` <= `limits.fetch_batch_size`."""

    def __init__(self, limits: BackfillSettings) -> None:
        self._limits = limits
        self._blocks = limits.fetch_batch_size
        self._block_bytes = 0.0

    def blocks(self, gently: bool) -> int:
        size_bytes = min(GENTLE_BYTES, self._limits.chunk_bytes) if gently else self._limits.chunk_bytes
        if not self._block_bytes:
            return 1 if gently else self._blocks
        return max(1, min(self._blocks, int(size_bytes / self._block_bytes)))

    def arrived(self, size_bytes: int) -> None:
        self._block_bytes = max(float(size_bytes), self._block_bytes * SIZE_FADES)

    def overflowed(self, chunk: FetchedRange) -> None:
        came = chunk.next_block - chunk.first
        self._block_bytes = max(self._block_bytes, chunk.size_bytes / max(1, came))

    def was_slow(self) -> None:
        self._blocks = max(1, self._blocks // 2)

    def was_good(self) -> None:
        self._blocks = min(self._limits.fetch_batch_size, self._blocks + 1)


class FetchedRange(msgspec.Struct, eq=False, kw_only=True):
    """One request with the received blocks that were not passed on yet, in ascending order.

    next_block: the next block to be received; partial_bytes: its bytes so far. complete: no more blocks are expected.
    bytes_max: the share of the buffer that the blocks may use. alone: no other request may run at the same time.

    Invariant: `size_bytes` is the total size of `blocks` plus `partial_bytes`.
    """

    chunk_id: int
    source: str
    first: int
    last: int
    next_block: int
    bytes_max: int
    deadline_s: float
    alone: bool
    complete: bool = False
    blocks: dict[int, list[bytes]] = {}
    partial_bytes: int = 0
    _sizes: dict[int, int] = {}
    _held_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self._held_bytes + self.partial_bytes

    @property
    def top(self) -> int:
        return next(reversed(self.blocks))

    @property
    def bottom(self) -> int:
        return next(iter(self.blocks))

    def numbers(self) -> Iterator[int]:
        yield from self.blocks
        if not self.complete:
            yield from range(self.next_block, self.last + 1)

    def add(self, number: int, items: list[bytes], size_bytes: int) -> None:
        self.blocks[number] = items
        self._sizes[number] = size_bytes
        self._held_bytes += size_bytes

    def take(self, number: int) -> tuple[list[bytes], int]:
        size_bytes = self._sizes.pop(number)
        self._held_bytes -= size_bytes
        return self.blocks.pop(number), size_bytes

    def forget(self, number: int) -> None:
        if number in self.blocks:
            self.take(number)


# The range of one request. One end of it is `edge`. It lies in `hole`, a range of missing blocks, and has at most
# `blocks` blocks, all of them in `claims`. It has no block of `large` but `edge`: each of these needs a request alone.


def lowest_of(edge: int, hole: NumberRange, blocks: int, claims: BlockRanges, large: Set[int]) -> NumberRange:
    first = max(hole.first, edge - blocks + 1)
    lacking = claims.missing(first, edge)
    first = lacking[-1].last + 1 if lacking else first
    return NumberRange(max([first, *(number + 1 for number in large if first <= number < edge)]), edge)


def highest_of(edge: int, hole: NumberRange, blocks: int, claims: BlockRanges, large: Set[int]) -> NumberRange:
    end = claims.end_of_run(edge)
    assert end is not None, "the source has the block"
    last = min(hole.last, end, edge + blocks - 1)
    return NumberRange(edge, min([last, *(number - 1 for number in large if edge < number <= last)]))
