"""What the fill machine (`fill_machine`) is made of: requests under way, and what it asks its caller to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

PENDING_SHARE = 8
"""One part in so many of the buffer is for blocks that are handed on and not stored."""

GENTLE_BYTES = 256 * 1024
"""In one request while somebody else is not to be kept waiting: some milliseconds' work."""
SIZE_FADES = 0.98
"""What a block's size still counts after the next one."""


class FillLimits(msgspec.Struct, frozen=True, kw_only=True):
    """buffer_bytes: fetched and not stored, in all. chunks: requests at a time. batch_blocks: in one request.

    pending_blocks: handed on and not stored, so that verifying goes on while the disk syncs; beside publishers there
    are fewer, since blocks are handed on with pauses then (`worker`).
    """

    buffer_bytes: int = 104_857_600
    chunks: int = 4
    batch_blocks: int = 100
    retries_max: int = 3
    fetch_s_max: float = 60.0
    pending_blocks: int = 64
    processing_s_max: float = 10.0

    @property
    def pending_bytes(self) -> int:
        return max(1, self.buffer_bytes // PENDING_SHARE)

    @property
    def alone_bytes(self) -> int:
        """For one request that is under way alone."""
        return max(1, self.buffer_bytes - self.pending_bytes)

    @property
    def chunk_bytes(self) -> int:
        return max(1, self.alone_bytes // self.chunks)


class Fetch(msgspec.Struct, frozen=True):
    """Ask this source for these blocks, both included."""

    chunk_id: int
    source: str
    first: int
    last: int


class Delivery(msgspec.Struct, frozen=True):
    """Have this block verified and stored. root: the one that it must have; empty where the chain decides, or none."""

    number: int
    items: list[bytes]
    size_bytes: int
    root: bytes
    source: str


class GivenUp(msgspec.Struct, frozen=True):
    """These blocks are not fetched now; the next scan finds them again."""

    first: int
    last: int
    reason: str


class Pending(msgspec.Struct):
    """A block that was handed on. verified: that it passed, and is to be stored. waits: how often it was overdue."""

    source: str
    size_bytes: int
    since_s: float
    verified: bool = False
    waits: int = 0


class Delivered(dict[int, Pending]):
    """The blocks that were handed on and are not stored yet, by number."""

    @property
    def size_bytes(self) -> int:
        return sum(pending.size_bytes for pending in self.values())

    @property
    def all_verified(self) -> bool:
        return all(pending.verified for pending in self.values())

    def has_room(self, limits: FillLimits) -> bool:
        return len(self) < limits.pending_blocks and self.size_bytes < limits.pending_bytes

    def overdue(self, now_s: float, processing_s_max: float) -> list[int]:
        """Those that are not stored after that time, again after as long."""
        found = [number for number, pending in self.items() if now_s - pending.since_s >= processing_s_max]
        for number in found:
            self[number].since_s = now_s
            self[number].waits += 1
        return found


class BatchSize:
    """How many blocks are asked for in one request: as many as are likely to fit into its share of the buffer.

    Invariant: 1 <= `_blocks` <= `limits.batch_blocks`.
    """

    def __init__(self, limits: FillLimits) -> None:
        self._limits = limits
        self._blocks = limits.batch_blocks
        self._block_bytes = 0.0

    def blocks(self, gently: bool) -> int:
        """gently: so few that whoever takes what comes of them is not busy with it for long."""
        size_bytes = min(GENTLE_BYTES, self._limits.chunk_bytes) if gently else self._limits.chunk_bytes
        if not self._block_bytes:
            return 1 if gently else self._blocks
        return max(1, min(self._blocks, int(size_bytes / self._block_bytes)))

    def arrived(self, size_bytes: int) -> None:
        """A block of that size has come: one of the largest counts for a while, so that few requests are too large."""
        self._block_bytes = max(float(size_bytes), self._block_bytes * SIZE_FADES)

    def overflowed(self, chunk: FetchedRange) -> None:
        """It had more than its share: the next one from the same place is for fewer blocks."""
        came = chunk.next_block - chunk.first
        self._block_bytes = max(self._block_bytes, chunk.size_bytes / max(1, came))

    def was_slow(self) -> None:
        self._blocks = max(1, self._blocks // 2)

    def was_good(self) -> None:
        """A block passed; so many of them may be asked for again."""
        self._blocks = min(self._limits.batch_blocks, self._blocks + 1)


class FetchedRange:
    """Blocks asked for in one request, from `first` to `last`, and what has come of them.

    next_block: the next that is to come; all have when `complete`. alone: nothing else is fetched meanwhile.
    Invariant: `size_bytes` is that of `blocks` and of what has come of the next one (`partial_bytes`); the blocks are
    in ascending order.
    """

    __slots__ = (
        "_held_bytes",
        "_sizes",
        "alone",
        "blocks",
        "bytes_max",
        "chunk_id",
        "complete",
        "deadline_s",
        "first",
        "last",
        "next_block",
        "partial_bytes",
        "source",
    )

    def __init__(self, fetch: Fetch, bytes_max: int, deadline_s: float, *, alone: bool) -> None:
        self.chunk_id, self.source, self.first, self.last = fetch.chunk_id, fetch.source, fetch.first, fetch.last
        self.next_block = fetch.first
        self.bytes_max = bytes_max
        self.deadline_s = deadline_s
        self.alone = alone
        self.complete = False
        self.blocks: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._held_bytes = 0
        self.partial_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._held_bytes + self.partial_bytes

    @property
    def top(self) -> int:
        """The highest block that is held."""
        return next(reversed(self.blocks))

    @property
    def bottom(self) -> int:
        """The lowest block that is held."""
        return next(iter(self.blocks))

    def numbers(self) -> Iterator[int]:
        """What is held or still to come."""
        yield from self.blocks
        if not self.complete:
            yield from range(self.next_block, self.last + 1)

    def add(self, number: int, items: list[bytes], size_bytes: int) -> None:
        self.blocks[number] = items
        self._sizes[number] = size_bytes
        self._held_bytes += size_bytes

    def take(self, number: int) -> tuple[list[bytes], int]:
        """Its items and their size; it is not held any more."""
        size_bytes = self._sizes.pop(number)
        self._held_bytes -= size_bytes
        return self.blocks.pop(number), size_bytes

    def forget(self, number: int) -> None:
        if number in self.blocks:
            self.take(number)
