"""The state machine that fills the holes of one kind. It decides which blocks to request from which source, and which
fetched block is delivered next to be verified and stored. Pure; no I/O.

History is filled from the top of each hole downwards: the block above the hole is stored, and its footer names the root
that the block below must have. The footer of that block names the next root, and so on. So every stored block is tied
to the chain. The live tail is filled upwards, where each block continues the verified chain.

    open ──next_fetch──▶ in a chunk ──next_delivery──▶ delivered ──stored──▶ gone
      ▲                    │ failed                      │ refused, put_back
      └────────────────────┴─────────────────────────────┘

A hole that cannot be filled is given up: the next scan finds it again. The caller passes all times, in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from block_node.backfill.chunks import BatchSize, Delivered, Delivery, Fetch, FetchedRange, FillLimits, GivenUp, Pending
from block_node.backfill.health_machine import Health
from block_node.backfill.plan import Kind
from block_node.backfill.request_range import highest_of, lowest_of
from block_node.persist.ranges import BlockRange, BlockRanges

EDGES_LOOKED_AT = 64
"""The largest number of holes that are examined to find one that can be fetched, so that thousands of holes cost no
more than a few."""


class FillMachine:
    """The state machine of one filler. `holes` are the missing blocks that it is filling. `gently` makes it request
    little at a time, so that publishers do not wait for backfill.

    Invariant (`check`): every block of the holes is either open, in one chunk, or delivered. The fetched blocks that
    are not stored have at most `limits.buffer_bytes`, except for the message that exceeded this bound.
    """

    def __init__(self, kind: Kind, limits: FillLimits, health: Health) -> None:
        self.kind = kind
        self._downwards = kind is Kind.HISTORICAL
        self._limits = limits
        self._health = health
        self._chunk_ids = 0
        self.gently = False
        self.forget()

    def forget(self) -> None:
        """Resets the machine: it forgets all holes, requests and fetched blocks."""
        self._batch = BatchSize(self._limits)
        self._open = BlockRanges()
        self._chunks: dict[int, FetchedRange] = {}
        self._anchors: dict[int, bytes] = {}
        self._attempts: Counter[int] = Counter()
        self._large: set[int] = set()
        self.holes = BlockRanges()
        self.delivered = Delivered()
        self.given_up: list[GivenUp] = []

    @property
    def busy(self) -> bool:
        return bool(self.holes)

    @property
    def chunks(self) -> list[FetchedRange]:
        return list(self._chunks.values())

    def find_awaited(self, chunk_id: int) -> FetchedRange | None:
        """Returns the chunk of a request; None if the request is complete or no longer of interest."""
        chunk = self._chunks.get(chunk_id)
        return None if chunk is None or chunk.complete else chunk

    @property
    def held_bytes(self) -> int:
        """The total size, in bytes, of the blocks that were fetched and are not stored."""
        return self.delivered.size_bytes + sum(chunk.size_bytes for chunk in self._chunks.values())

    def assign(self, first: int, last: int) -> None:
        """Adds missing blocks, from `first` to `last`. Blocks that were assigned already are ignored."""
        for hole in self.holes.missing(first, last):
            self.holes.add(*hole)
            self._open.add(*hole)

    # Fetching.

    def next_fetch(self, now_s: float) -> Fetch | None:
        """Returns the next request to send, or None. Gives up holes whose blocks no source has."""
        self._unblock()
        while len(self._chunks) < self._limits.chunks and not any(chunk.alone for chunk in self._chunks.values()):
            unclaimed = None
            for edge, hole in islice(self._edges(), EDGES_LOOKED_AT):
                if not self._health.has_any(edge):
                    unclaimed = edge
                    break
                alone = edge in self._large
                if alone and self._chunks:
                    return None
                fetch = self._fetch(edge, hole, now_s, alone)
                if fetch is not None:
                    return fetch
            if unclaimed is None:
                return None
            self._give_up(unclaimed, "no source has it")
        return None

    def grew(self, chunk_id: int, size_bytes: int) -> bool:
        """Counts `size_bytes` more received bytes of a chunk. Returns False if the chunk is now too large: the caller
        must then call `overflowed`."""
        chunk = self._chunks[chunk_id]
        chunk.partial_bytes += size_bytes
        return chunk.size_bytes <= chunk.bytes_max

    def arrived(self, chunk_id: int, number: int, items: list[bytes]) -> None:
        """Takes the next complete block of a chunk. Its bytes were already counted by `grew`."""
        chunk = self._chunks[chunk_id]
        assert number == chunk.next_block, "the caller checks the order"
        chunk.next_block = number + 1
        size_bytes, chunk.partial_bytes = chunk.partial_bytes, 0
        self._health.fetched(chunk.source, size_bytes)
        self._batch.arrived(size_bytes)
        if number in self.holes:
            chunk.add(number, items, size_bytes)
        if chunk.next_block > chunk.last:
            chunk.complete = True
            self._remove_if_done(chunk)

    def overflowed(self, chunk_id: int) -> None:
        """Handles a chunk whose blocks are too large for its share of the buffer. No source is marked as failed."""
        chunk = self._chunks[chunk_id]
        number, single = chunk.next_block, chunk.first == chunk.last
        self._batch.overflowed(chunk)
        self._drop(chunk)
        if single and chunk.alone:
            self._give_up(number, "it is larger than what maxIncomingBufferSize leaves for one block")
        elif single:
            self._large.add(number)

    def failed(self, chunk_id: int, now_s: float, reason: str, *, lied: bool = False, slow: bool = False) -> None:
        """Handles a source that did not send all blocks of a chunk. lied: the source claims blocks that it does not
        have. slow: the request took too long."""
        chunk = self.find_awaited(chunk_id)
        if chunk is None:
            return
        if slow:
            self._batch.was_slow()
        self._health.failed(chunk.source, now_s, reason)
        if lied:
            self._health.disbelieve(chunk.source, chunk.next_block, chunk.next_block)
        edge = chunk.last if self._downwards else chunk.next_block
        self._drop(chunk)
        self._count_attempt(edge, reason)

    def late(self, now_s: float) -> list[FetchedRange]:
        """Returns the chunks whose request has passed its deadline."""
        return [chunk for chunk in self._chunks.values() if not chunk.complete and chunk.deadline_s <= now_s]

    # Handing on.

    def next_delivery(self, now_s: float) -> Delivery | None:
        """Returns the next block to be verified and stored, or None. The block counts as delivered from then on."""
        chunk = self._deliverable() if self.delivered.has_room(self._limits) else None
        if chunk is None:
            return None
        number = chunk.top if self._downwards else chunk.bottom
        items, size_bytes = chunk.take(number)
        self.delivered[number] = Pending(chunk.source, size_bytes, now_s)
        self._remove_if_done(chunk)
        return Delivery(number, items, size_bytes, self._anchors.get(number, b""), chunk.source)

    def wanted_anchors(self) -> list[int]:
        """Returns the blocks whose root must be learned from the footer of the stored block above. The caller answers
        with `anchored` or `not_anchored`."""
        if not self._downwards:
            return []
        tops = [chunk.top for chunk in self._chunks.values() if chunk.complete]
        return [top for top in tops if top not in self._anchors and top + 1 not in self.holes]

    def anchored(self, number: int, root: bytes) -> None:
        """Notes the root that a block must have; empty if roots are not checked."""
        if number in self.holes:
            self._anchors[number] = root

    def not_anchored(self, number: int, reason: str) -> None:
        """Gives up the hole below a stored block, because that stored block cannot be read."""
        if number in self.holes:
            self._give_up(number, reason)

    def verified(self, number: int, previous_root: bytes) -> None:
        """Notes that a delivered block passed verification. previous_root: the root that its footer names for the block
        below; empty if roots are not checked."""
        pending = self.delivered.get(number)
        if pending is None:
            return
        pending.verified = True
        self._health.succeeded(pending.source)
        self._attempts.pop(number, None)
        self._anchors.pop(number, None)
        if self._downwards and number - 1 in self.holes:
            self._anchors[number - 1] = previous_root
        self._batch.was_good()

    def refused(self, number: int, now_s: float, reason: str) -> None:
        """Notes that a delivered block failed verification. Its source is marked as failed, and the other blocks of the
        same chunk are dropped."""
        pending = self.delivered.pop(number, None)
        if pending is None:
            return
        self._reopen((number,))
        for chunk in self.chunks:
            if chunk.source == pending.source and chunk.first <= number <= chunk.last:
                self._drop(chunk, keep=False)
        self._health.failed(pending.source, now_s, reason)
        self._health.disbelieve(pending.source, number, number)
        self._count_attempt(number, reason)

    def put_back(self, number: int, reason: str) -> None:
        """Opens a delivered block again, so that it is fetched anew. The block was not judged, or could not be
        stored."""
        if self.delivered.pop(number, None) is not None:
            self._reopen((number,))
            self._count_attempt(number, reason)

    def stored(self, number: int) -> bool:
        """Notes that a block was stored, by backfill or by a publisher. Returns whether this machine had delivered the
        block."""
        if number not in self.holes:
            return False
        self.holes.discard(number)
        self._open.discard(number)
        self._large.discard(number)
        self._anchors.pop(number, None)
        self._attempts.pop(number, None)
        for chunk in self.chunks:
            if chunk.first <= number <= chunk.last:
                chunk.forget(number)
                self._remove_if_done(chunk)
        return self.delivered.pop(number, None) is not None

    def overdue(self, now_s: float) -> list[int]:
        """Returns the delivered blocks that have not been stored for `processing_s_max`. A block is returned again
        after each further period of that length. No block is delivered again; it is given up after more than
        `retries_max` such periods."""
        found = self.delivered.overdue(now_s, self._limits.processing_s_max)
        for number in found:
            if self.delivered[number].waits > self._limits.retries_max:
                del self.delivered[number]
                self._reopen((number,))
                self._give_up(number, "it was handed on and is not stored")
        return found

    def check(self) -> None:
        """Checks the invariant."""
        places = [number for chunk in self.chunks for number in chunk.numbers() if number in self.holes]
        places += self.delivered
        seen = BlockRanges([*self._open, *((number, number) for number in places)])
        assert seen == self.holes, f"{seen} is looked after, {self.holes} is missing"
        assert self._open.count() + len(places) == self.holes.count(), "a block is in two places"
        large = max((pending.size_bytes for pending in self.delivered.values()), default=0)
        bytes_max = self._limits.alone_bytes + max(self._limits.pending_bytes, large) + large
        held_bytes = self.held_bytes - sum(chunk.partial_bytes for chunk in self.chunks)
        assert held_bytes <= bytes_max, f"{held_bytes} bytes are held"

    def _edges(self) -> Iterator[tuple[int, BlockRange]]:
        """Yields the blocks at which fetching can continue, each with the run of open blocks that it begins. In each
        hole this is the open block nearest to the stored blocks."""
        if not self._downwards:
            yield from ((lowest.first, lowest) for lowest in islice(self._open, 1))
            return
        above: int | None = None
        for each in reversed(self._open):
            end = self.holes.end_of_run(each.last)
            if end != above:
                yield each.last, each
            above = end

    def _fetch(self, edge: int, hole: BlockRange, now_s: float, alone: bool) -> Fetch | None:
        busy = Counter(chunk.source for chunk in self._chunks.values() if not chunk.complete)
        source = self._health.choose(edge, now_s, busy)
        if source is None or source.claims is None:
            return None
        blocks = 1 if alone else self._batch.blocks(self.gently)
        range_of = lowest_of if self._downwards else highest_of
        first, last = range_of(edge, hole, blocks, source.claims, self._large)
        self._chunk_ids += 1
        fetch = Fetch(self._chunk_ids, source.setting.name, first, last)
        bytes_max = self._limits.alone_bytes if alone else self._limits.chunk_bytes
        self._chunks[fetch.chunk_id] = FetchedRange(fetch, bytes_max, now_s + self._limits.fetch_s_max, alone=alone)
        self._open.discard(first, last)
        return fetch

    def _deliverable(self) -> FetchedRange | None:
        if self._downwards:
            ready = (chunk for chunk in self._chunks.values() if chunk.complete and chunk.top in self._anchors)
            return max(ready, key=lambda chunk: chunk.top, default=None)
        if not self.delivered.all_verified:
            return None
        lowest = min(self._chunks.values(), key=lambda chunk: next(chunk.numbers()), default=None)
        first_open = self._open.first
        waits = lowest is None or not lowest.blocks or (first_open is not None and first_open < lowest.bottom)
        return None if waits else lowest

    def _unblock(self) -> None:
        """Drops fetched blocks if all of them wait for an open block and leave no room to request that block."""
        edge = next((edge for edge, _ in self._edges()), None)
        if edge is None or self.delivered or any(self._goes_on(chunk) for chunk in self._chunks.values()):
            return
        if edge in self._large or any(chunk.alone for chunk in self._chunks.values()):
            for chunk in self.chunks:
                self._drop(chunk, keep=False)
        elif len(self._chunks) >= self._limits.chunks:
            farthest = min if self._downwards else max
            self._drop(farthest(self._chunks.values(), key=lambda chunk: chunk.first), keep=False)

    def _goes_on(self, chunk: FetchedRange) -> bool:
        """Whether a chunk can still make progress without another request."""
        if self._downwards and chunk.complete:
            return chunk.top in self._anchors or chunk.top + 1 not in self.holes
        return not chunk.complete or self._deliverable() is chunk

    def _remove_if_done(self, chunk: FetchedRange) -> None:
        if chunk.complete and not chunk.blocks:
            self._chunks.pop(chunk.chunk_id, None)

    def _drop(self, chunk: FetchedRange, *, keep: bool = True) -> None:
        """Ends a chunk, and opens its missing blocks again. When filling upwards, the received blocks are kept unless
        `keep` is False. When filling downwards they are always dropped: they are useless without the blocks above."""
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
        if self._attempts[edge] > self._limits.retries_max:
            self._give_up(edge, f"{self._attempts[edge]} times in vain, at last: {reason}")

    def _give_up(self, edge: int, reason: str) -> None:
        """Gives up the open blocks of a hole from `edge` on, in the direction in which the hole is filled. Delivered
        blocks are not affected."""
        if edge not in self.holes:
            return
        first, last = edge, self.holes.last or edge
        if self._downwards:
            first, last = max((below.last + 1 for below in self.holes.missing(0, edge)), default=0), edge
        for chunk in self.chunks:
            if chunk.first <= last and chunk.last >= first:
                self._drop(chunk, keep=False)
        for low, high in [each for each in self._open if each.last >= first and each.first <= last]:
            low, high = max(low, first), min(high, last)
            self._open.discard(low, high)
            self.holes.discard(low, high)
        self._attempts.pop(edge, None)
        self._anchors = {number: root for number, root in self._anchors.items() if number in self.holes}
        self.given_up.append(GivenUp(first, last, reason))
