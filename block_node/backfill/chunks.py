"""The parts of the fill machine (`fill_machine`): its limits, its requests under way, and the actions that it asks its
caller to carry out. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

PENDING_SHARE = 8
"""The divisor for the share of the buffer that is reserved for delivered blocks: one eighth of it."""

GENTLE_BYTES = 256 * 1024
"""The size limit of one request while publishers are connected. Processing this many bytes takes some milliseconds."""
SIZE_FADES = 0.98
"""The factor by which the remembered largest block size shrinks with each next block."""


class FillLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one filler.

    buffer_bytes: the total size of blocks that were fetched and are not stored. chunks: the number of requests at a
    time. batch_blocks: the number of blocks in one request. retries_max: failed attempts before a hole is given up.
    fetch_s_max: seconds for one request. processing_s_max: seconds until a delivered block should be stored.

    pending_blocks: the number of blocks that were delivered and are not stored. It is above 1 so that blocks are
    verified while the disk syncs. While publishers are connected there are fewer, since blocks are then delivered with
    pauses (`worker`).
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
        """The size limit, in bytes, of a request that is under way alone."""
        return max(1, self.buffer_bytes - self.pending_bytes)

    @property
    def chunk_bytes(self) -> int:
        return max(1, self.alone_bytes // self.chunks)


class Fetch(msgspec.Struct, frozen=True):
    """A request to be sent: ask `source` for the blocks from `first` to `last`, both included."""

    chunk_id: int
    source: str
    first: int
    last: int


class Delivery(msgspec.Struct, frozen=True):
    """A fetched block to be verified and stored. root: the root that the block must have; empty if the chain decides or
    roots are not checked."""

    number: int
    items: list[bytes]
    size_bytes: int
    root: bytes
    source: str


class GivenUp(msgspec.Struct, frozen=True):
    """A run of blocks that is not fetched now. The next scan finds these blocks again."""

    first: int
    last: int
    reason: str


class Pending(msgspec.Struct):
    """A delivered block that is not stored yet. verified: whether it passed verification. waits: how often it was found
    overdue."""

    source: str
    size_bytes: int
    since_s: float
    verified: bool = False
    waits: int = 0


class Delivered(dict[int, Pending]):
    """The blocks that were delivered and are not stored yet, by block number."""

    @property
    def size_bytes(self) -> int:
        return sum(pending.size_bytes for pending in self.values())

    @property
    def all_verified(self) -> bool:
        return all(pending.verified for pending in self.values())

    def has_room(self, limits: FillLimits) -> bool:
        return len(self) < limits.pending_blocks and self.size_bytes < limits.pending_bytes

    def overdue(self, now_s: float, processing_s_max: float) -> list[int]:
        """Returns the blocks that have not been stored for `processing_s_max` seconds, and restarts the waiting time of
        these blocks."""
        found = [number for number, pending in self.items() if now_s - pending.since_s >= processing_s_max]
        for number in found:
            self[number].since_s = now_s
            self[number].waits += 1
        return found


class BatchSize:
    """The number of blocks in the next request: as many as will probably fit into the request's share of the buffer.

    Invariant: 1 <= `_blocks` <= `limits.batch_blocks`.
    """

    def __init__(self, limits: FillLimits) -> None:
        self._limits = limits
        self._blocks = limits.batch_blocks
        self._block_bytes = 0.0

    def blocks(self, gently: bool) -> int:
        """Returns the number of blocks for the next request. gently: makes the request so small that processing its
        blocks takes only some milliseconds."""
        size_bytes = min(GENTLE_BYTES, self._limits.chunk_bytes) if gently else self._limits.chunk_bytes
        if not self._block_bytes:
            return 1 if gently else self._blocks
        return max(1, min(self._blocks, int(size_bytes / self._block_bytes)))

    def arrived(self, size_bytes: int) -> None:
        """Notes the size of a received block. The largest recent size counts for a while, so that few requests are too
        large."""
        self._block_bytes = max(float(size_bytes), self._block_bytes * SIZE_FADES)

    def overflowed(self, chunk: FetchedRange) -> None:
        """Notes that a chunk exceeded its share of the buffer: the next request asks for fewer blocks."""
        came = chunk.next_block - chunk.first
        self._block_bytes = max(self._block_bytes, chunk.size_bytes / max(1, came))

    def was_slow(self) -> None:
        self._blocks = max(1, self._blocks // 2)

    def was_good(self) -> None:
        """Notes that a block passed verification: the next request may ask for one block more."""
        self._blocks = min(self._limits.batch_blocks, self._blocks + 1)


class FetchedRange:
    """The blocks of one request, from `first` to `last`, as far as they have arrived.

    next_block: the next block to arrive. complete: whether all blocks have arrived. alone: no other request may run at
    the same time. Invariant: `size_bytes` is the size of `blocks` plus the received bytes of the next block
    (`partial_bytes`); the blocks are in ascending order.
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
        """Yields the numbers of the blocks that are held or still to arrive."""
        yield from self.blocks
        if not self.complete:
            yield from range(self.next_block, self.last + 1)

    def add(self, number: int, items: list[bytes], size_bytes: int) -> None:
        self.blocks[number] = items
        self._sizes[number] = size_bytes
        self._held_bytes += size_bytes

    def take(self, number: int) -> tuple[list[bytes], int]:
        """Removes a block, and returns its items and their size in bytes."""
        size_bytes = self._sizes.pop(number)
        self._held_bytes -= size_bytes
        return self.blocks.pop(number), size_bytes

    def forget(self, number: int) -> None:
        if number in self.blocks:
            self.take(number)
