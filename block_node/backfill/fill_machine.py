"""The state machine that fills gaps: ranges of missing blocks. It decides what to fetch and what to pass on. No I/O.

There is one machine for history, the blocks below the next block of the chain, and one for the newest blocks. History
is filled downwards from the top of each gap: the block above is stored, and its footer names the root hash of the block
below, and so on. So each block is checked against the chain. The newest blocks are filled upwards: each must continue
the chain.

    open ──next_fetch──▶ in a chunk ──next_delivery──▶ delivered ──stored──▶ gone
      ▲                    │ failed                      │ refused, put_back
      └────────────────────┴─────────────────────────────┘

An open block is missing and not requested. A chunk is one request with its received blocks. A delivered block was
passed on to be verified and stored. A gap that cannot be filled is given up, and the next search finds it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import islice

import msgspec

from block_node.backfill.health_machine import Health
from block_node.backfill.plan import Kind
from block_node.backfill.settings import BackfillSettings
from block_node.events import BackfilledBlockNotification
from block_node.persist.ranges import BlockRanges, NumberRange

GENTLE_BYTES = 256 * 1024
"""The largest size of one request while publishers are connected: processing it takes a few milliseconds."""
SIZE_FADES = 0.98
EDGES_LOOKED_AT = 64
"""The largest number of gaps that are examined to find one that can be fetched: there can be thousands of gaps."""


class Pending(msgspec.Struct):
    """A block that was passed on and is not stored yet. since_s: when it was passed on, or last reported as overdue."""

    source: str
    size_bytes: int
    since_s: float
    verified: bool = False
    waits: int = 0


class FetchedRange(msgspec.Struct, eq=False, kw_only=True):
    """One request with the received blocks that were not passed on yet, in ascending order.

    blocks: the items and the size of each, by number. next_block: the next block to be received; partial_bytes: its
    bytes so far. complete: no more blocks are expected.
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
    blocks: dict[int, tuple[list[bytes], int]] = {}
    partial_bytes: int = 0
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
        self.blocks[number] = items, size_bytes
        self._held_bytes += size_bytes

    def take(self, number: int) -> tuple[list[bytes], int]:
        items, size_bytes = self.blocks.pop(number)
        self._held_bytes -= size_bytes
        return items, size_bytes

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


class FillMachine:
    """The state machine that fills the gaps of one kind.

    holes: the missing blocks that this machine must fill.
    given_up: the ranges that were given up and not logged yet, each with the reason.
    delivered: the blocks that were passed on for verification and are not stored yet.
    gently: whether requests are kept small, so that publishers do not have to wait.

    Invariant (`check`): each block in `holes` is either open, in one chunk, or delivered. The fetched blocks that are
    not stored yet have at most `max_incoming_buffer_size` bytes, plus one block and the message that exceeded the
    limit.
    """

    def __init__(self, kind: Kind, limits: BackfillSettings, health: Health) -> None:
        self.kind = kind
        self._downwards = kind is Kind.HISTORICAL
        self._limits = limits
        self._health = health
        self._chunk_ids = 0
        self.gently = False
        self.forget()

    def forget(self) -> None:
        self._batch_blocks = self._limits.fetch_batch_size
        self._block_bytes = 0.0
        self._open = BlockRanges()
        self._chunks: dict[int, FetchedRange] = {}
        self._anchors: dict[int, tuple[bytes, ...]] = {}
        self._attempts: Counter[int] = Counter()
        self._large: set[int] = set()
        self.holes = BlockRanges()
        self.delivered: dict[int, Pending] = {}
        self.given_up: list[tuple[NumberRange, str]] = []

    @property
    def busy(self) -> bool:
        return bool(self.holes)

    @property
    def chunks(self) -> list[FetchedRange]:
        return list(self._chunks.values())

    def find_awaited(self, chunk_id: int) -> FetchedRange | None:
        chunk = self._chunks.get(chunk_id)
        return None if chunk is None or chunk.complete else chunk

    @property
    def delivered_bytes(self) -> int:
        return sum(pending.size_bytes for pending in self.delivered.values())

    @property
    def held_bytes(self) -> int:
        return self.delivered_bytes + sum(chunk.size_bytes for chunk in self._chunks.values())

    def assign(self, first: int, last: int) -> None:
        for hole in self.holes.missing(first, last):
            self.holes.add(*hole)
            self._open.add(*hole)

    # Fetching.

    def next_fetch(self, now_s: float) -> FetchedRange | None:
        """Returns the next request to send, or None. Gives up blocks that no source node has."""
        # Fetched blocks may wait for a missing block, and leave no room for the request of that block.
        self._unblock()
        while len(self._chunks) < self._limits.concurrent_fetches and not any(
            chunk.alone for chunk in self._chunks.values()
        ):
            unclaimed = None
            for edge, hole in islice(self._edges(), EDGES_LOOKED_AT):
                # A block that no source has is given up only after this loop, because that changes the gaps.
                if not any(source.has(edge) for source in self._health.sources.values()):
                    unclaimed = edge
                    break
                # A large block needs the whole buffer, so it waits until the other requests are done.
                alone = edge in self._large
                if alone and self._chunks:
                    return None
                fetch = self._fetch(edge, hole, now_s, alone)
                if fetch is not None:
                    return fetch
            if unclaimed is None:
                return None
            silence = self._health.find_silence()
            self._give_up(unclaimed, f"no source answers: {silence}" if silence else "no source has it")
        return None

    def grew(self, chunk_id: int, size_bytes: int) -> bool:
        """Records more received bytes. Returns False if the request is too large: then call `overflowed`."""
        chunk = self._chunks[chunk_id]
        chunk.partial_bytes += size_bytes
        return chunk.size_bytes <= chunk.bytes_max

    def arrived(self, chunk_id: int, number: int, items: list[bytes]) -> None:
        """Adds the next complete block of a request, whose bytes `grew` has counted."""
        chunk = self._chunks[chunk_id]
        assert number == chunk.next_block, "the caller checks the order"
        chunk.next_block = number + 1
        # The bytes that `grew` has counted are those of this block. Its size decides how large the next requests are.
        size_bytes, chunk.partial_bytes = chunk.partial_bytes, 0
        self._health.fetched(chunk.source, size_bytes)
        self._block_bytes = max(float(size_bytes), self._block_bytes * SIZE_FADES)
        # A publisher may have sent the block meanwhile. Then these items are dropped.
        if number in self.holes:
            chunk.add(number, items, size_bytes)
        if chunk.next_block > chunk.last:
            chunk.complete = True
            self._remove_if_done(chunk)

    def overflowed(self, chunk_id: int) -> None:
        """Ends a request that is too large, which is no failure of the source. A single block is requested again alone,
        with a larger part of the buffer; if it does not fit even then, it is given up."""
        chunk = self._chunks[chunk_id]
        number, single = chunk.next_block, chunk.first == chunk.last
        self._block_bytes = max(self._block_bytes, chunk.size_bytes / max(1, number - chunk.first))
        self._drop(chunk)
        if single and chunk.alone:
            self._give_up(number, "it is larger than what maxIncomingBufferSize leaves for one block")
        elif single:
            self._large.add(number)

    def failed(self, chunk_id: int, now_s: float, reason: str, *, lied: bool = False, slow: bool = False) -> None:
        """Handles the failure of a request. lied: whether the source node does not have the blocks that it claimed.
        slow: whether the request took too long."""
        chunk = self.find_awaited(chunk_id)
        if chunk is None:
            return
        # After a slow request, the next ones ask for fewer blocks.
        if slow:
            self._batch_blocks = max(1, self._batch_blocks // 2)
        self._health.failed(chunk.source, now_s, reason)
        if lied:
            self._health.disbelieve(chunk.source, chunk.next_block, chunk.next_block)
        # The attempt counts for the block at which fetching continues, since the next request begins there.
        edge = chunk.last if self._downwards else chunk.next_block
        self._drop(chunk)
        self._count_attempt(edge, reason)

    def late(self, now_s: float) -> list[FetchedRange]:
        return [chunk for chunk in self._chunks.values() if not chunk.complete and chunk.deadline_s <= now_s]

    # Passing on for verification.

    def next_delivery(self, now_s: float) -> BackfilledBlockNotification | None:
        """Moves the next block to be verified to `delivered`, and returns it. Its `roots` are the root hashes that it
        may have. They are empty if the block continues the chain, or if root hashes are not checked."""
        limits = self._limits
        has_room = len(self.delivered) < limits.pending_blocks and self.delivered_bytes < limits.pending_bytes
        chunk = self._deliverable() if has_room else None
        if chunk is None:
            return None
        number = chunk.top if self._downwards else chunk.bottom
        items, size_bytes = chunk.take(number)
        self.delivered[number] = Pending(chunk.source, size_bytes, now_s)
        self._remove_if_done(chunk)
        return BackfilledBlockNotification(number, items, size_bytes, roots=self._anchors.get(number, ()))

    def wanted_anchors(self) -> list[int]:
        """Returns the blocks whose root hashes the caller must find, in the footers of the stored blocks above them."""
        if not self._downwards:
            return []
        tops = [chunk.top for chunk in self._chunks.values() if chunk.complete]
        return [top for top in tops if top not in self._anchors and top + 1 not in self.holes]

    def anchored(self, number: int, roots: tuple[bytes, ...]) -> None:
        """Records the root hashes that a block may have. Empty: root hashes are not checked."""
        if number in self.holes:
            self._anchors[number] = roots

    def not_anchored(self, number: int, reason: str) -> None:
        if number in self.holes:
            self._give_up(number, reason)

    def verified(self, number: int, previous_root: bytes) -> None:
        """Records that a fetched block passed verification. previous_root: the root hash that its footer names."""
        pending = self.delivered.get(number)
        if pending is None:
            return
        # A verified block ends the failures of its source. Its own attempts end only when it is stored: otherwise a
        # full disk would have it fetched again and again.
        pending.verified = True
        self._health.succeeded(pending.source)
        self._anchors.pop(number, None)
        # The footer names the root hash of the block below, so no stored block has to be read for that hash.
        if self._downwards and number - 1 in self.holes:
            self._anchors[number - 1] = (previous_root,) if previous_root else ()
        self._batch_blocks = min(self._limits.fetch_batch_size, self._batch_blocks + 1)

    def being_stored(self, number: int) -> None:
        """Records that the block came from another source and is being stored, so that the next one can follow."""
        if (pending := self.delivered.get(number)) is not None:
            pending.verified = True

    def refused(self, number: int, now_s: float, reason: str) -> None:
        pending = self.delivered.pop(number, None)
        if pending is None:
            return
        self._reopen((number,))
        # The other blocks of this request come from the same source, and may belong to the same wrong chain.
        for chunk in self.chunks:
            if chunk.source == pending.source and chunk.first <= number <= chunk.last:
                self._drop(chunk, keep=False)
        self._health.failed(pending.source, now_s, reason)
        self._health.disbelieve(pending.source, number, number)
        self._count_attempt(number, reason)

    def put_back(self, number: int, reason: str) -> None:
        if self.delivered.pop(number, None) is not None:
            self._reopen((number,))
            self._count_attempt(number, reason)

    def stored(self, number: int) -> bool:
        """Records a stored block, from any source. Returns whether this machine had passed it on."""
        if number not in self.holes:
            return False
        self.holes.discard(number)
        self._open.discard(number)
        self._large.discard(number)
        self._anchors.pop(number, None)
        self._attempts.pop(number, None)
        # A running request may still bring the block, which is then ignored.
        for chunk in self.chunks:
            if chunk.first <= number <= chunk.last:
                chunk.forget(number)
                self._remove_if_done(chunk)
        return self.delivered.pop(number, None) is not None

    def overdue(self, now_s: float) -> list[int]:
        """Returns the blocks that were not stored in time. After more than `max_retries` times a block is given up."""
        limit_s = self._limits.processing_timeout_secs
        found = [number for number, pending in self.delivered.items() if now_s - pending.since_s >= limit_s]
        for number in found:
            # The time of a block that is not stored yet starts again.
            pending = self.delivered[number]
            pending.since_s = now_s
            pending.waits += 1
            if pending.waits > self._limits.max_retries:
                del self.delivered[number]
                self._reopen((number,))
                self._give_up(number, "it was handed on and is not stored")
        return found

    def check(self) -> None:
        # Every missing block is in exactly one place.
        places = [number for chunk in self.chunks for number in chunk.numbers() if number in self.holes]
        places += self.delivered
        seen = BlockRanges([*self._open, *((number, number) for number in places)])
        assert seen == self.holes, f"{seen} is looked after, {self.holes} is missing"
        assert self._open.count() + len(places) == self.holes.count(), "a block is in two places"
        # The buffer has its limit, which one large block may exceed. The last, incomplete messages do not count.
        large = max((pending.size_bytes for pending in self.delivered.values()), default=0)
        bytes_max = self._limits.alone_bytes + max(self._limits.pending_bytes, large) + large
        held_bytes = self.held_bytes - sum(chunk.partial_bytes for chunk in self.chunks)
        assert held_bytes <= bytes_max, f"{held_bytes} bytes are held"

    def _edges(self) -> Iterator[tuple[int, NumberRange]]:
        """Yields each open block at which fetching can continue, with its range of open blocks."""
        if not self._downwards:
            yield from ((lowest.first, lowest) for lowest in islice(self._open, 1))
            return
        # Chunks can split a gap into several open ranges. Fetching continues in the highest of these.
        above: int | None = None
        for each in reversed(self._open):
            end = self.holes.end_of_run(each.last)
            if end != above:
                yield each.last, each
            above = end

    def _fetch(self, edge: int, hole: NumberRange, now_s: float, alone: bool) -> FetchedRange | None:
        # Among equal sources, the one with the fewest running requests is chosen. Perhaps none can be asked now.
        busy = Counter(chunk.source for chunk in self._chunks.values() if not chunk.complete)
        source = self._health.choose(edge, now_s, busy)
        if source is None or source.claims is None:
            return None
        # The range lies in the gap and in the claims of the source, fits one request, and has no other large block.
        blocks = 1 if alone else self._request_blocks()
        range_of = lowest_of if self._downwards else highest_of
        first, last = range_of(edge, hole, blocks, source.claims, self._large)
        self._chunk_ids += 1
        chunk = self._chunks[self._chunk_ids] = FetchedRange(
            chunk_id=self._chunk_ids,
            source=source.setting.name,
            first=first,
            last=last,
            next_block=first,
            bytes_max=self._limits.alone_bytes if alone else self._limits.chunk_bytes,
            deadline_s=now_s + self._limits.fetch_timeout_secs,
            alone=alone,
        )
        self._open.discard(first, last)
        return chunk

    def _request_blocks(self) -> int:
        """Returns how many blocks the next request asks for, estimated from the size of received blocks."""
        if not self._block_bytes:
            return 1 if self.gently else self._batch_blocks
        size_bytes = min(GENTLE_BYTES, self._limits.chunk_bytes) if self.gently else self._limits.chunk_bytes
        return max(1, min(self._batch_blocks, int(size_bytes / self._block_bytes)))

    def _deliverable(self) -> FetchedRange | None:
        # The highest block with a known root hash goes first: the blocks below it need its footer.
        if self._downwards:
            ready = (chunk for chunk in self._chunks.values() if chunk.complete and chunk.top in self._anchors)
            return max(ready, key=lambda chunk: chunk.top, default=None)
        # Upwards, a block is passed on only after the block before it was verified.
        if not all(pending.verified for pending in self.delivered.values()):
            return None
        lowest = min(self._chunks.values(), key=lambda chunk: next(chunk.numbers()), default=None)
        first_open = self._open.first
        # Received blocks wait while a block below them is open.
        waits = lowest is None or not lowest.blocks or (first_open is not None and first_open < lowest.bottom)
        return None if waits else lowest

    def _unblock(self) -> None:
        """Drops fetched blocks if they wait for a missing block and leave no room for the request of that block."""
        edge = next((edge for edge, _ in self._edges()), None)
        if edge is None or self.delivered or any(self._goes_on(chunk) for chunk in self._chunks.values()):
            return
        if edge in self._large or any(chunk.alone for chunk in self._chunks.values()):
            for chunk in self.chunks:
                self._drop(chunk, keep=False)
        elif len(self._chunks) >= self._limits.concurrent_fetches:
            farthest = min if self._downwards else max
            self._drop(farthest(self._chunks.values(), key=lambda chunk: chunk.first), keep=False)

    def _goes_on(self, chunk: FetchedRange) -> bool:
        if self._downwards and chunk.complete:
            return chunk.top in self._anchors or chunk.top + 1 not in self.holes
        return not chunk.complete or self._deliverable() is chunk

    def _remove_if_done(self, chunk: FetchedRange) -> None:
        if chunk.complete and not chunk.blocks:
            self._chunks.pop(chunk.chunk_id, None)

    def _drop(self, chunk: FetchedRange, *, keep: bool = True) -> None:
        """Ends a request. keep: whether received blocks stay. A machine that fills downwards keeps none, because they
        are useless without the higher blocks."""
        if self._downwards or not keep:
            numbers: Iterable[int] = list(chunk.numbers())
            del self._chunks[chunk.chunk_id]
        else:
            numbers = () if chunk.complete else range(chunk.next_block, chunk.last + 1)
            chunk.partial_bytes, chunk.complete = 0, True
            self._remove_if_done(chunk)
        self._reopen(numbers)

    def _reopen(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.holes:
                self._open.add(number)

    def _count_attempt(self, edge: int, reason: str) -> None:
        self._attempts[edge] += 1
        if self._attempts[edge] > self._limits.max_retries:
            self._give_up(edge, f"{self._attempts[edge]} times in vain, at last: {reason}")

    def _give_up(self, edge: int, reason: str) -> None:
        """Gives up the block `edge` and the blocks that can only be fetched after it: the blocks below it in the gap,
        or all blocks above it. Delivered blocks are not given up."""
        if edge not in self.holes:
            return
        # Without the block at the edge, no block after it can be verified.
        first, last = edge, self.holes.last or edge
        if self._downwards:
            first, last = self.holes.start_of_run(edge), edge
        for chunk in self.chunks:
            if chunk.first <= last and chunk.last >= first:
                self._drop(chunk, keep=False)
        # The open blocks are forgotten; the next search for missing blocks finds them again.
        self._open.discard(first, last)
        self.holes.discard(first, last)
        for number in self.delivered:
            if first <= number <= last:
                self.holes.add(number)
        self._attempts = Counter({number: count for number, count in self._attempts.items() if number in self.holes})
        self._anchors = {number: roots for number, roots in self._anchors.items() if number in self.holes}
        self.given_up.append((NumberRange(first, last), reason))
