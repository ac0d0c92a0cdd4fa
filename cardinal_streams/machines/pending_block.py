"""The messages of one incomplete block: they are counted and collected here.

Messages are stored by their kind and put together at the end, so that the result does not depend on the order of
arrival. The Batch message announces the number of messages for each prefix. A key counts for the longest announced
prefix that it begins with and that still expects messages. The prefixes of one key are nested, so if the longest is
always filled first, and the announced numbers are right, all counters become full in any order of arrival. A key is
dropped when the consumer does not want its longest announced prefix."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from cardinal_streams.machines.events import (
    DUPLICATE,
    MISSING_ITEMS_SHOWN,
    TAKEN,
    UNANNOUNCED,
    Missing,
    MissingState,
    Receipt,
)
from cardinal_streams.message.messages import Batch, SubBatchMsg
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import Tracked

# The memory in bytes that a key and its value need in addition to their contents: two objects and an entry of a
# mapping (CPython 3.11).
ENTRY_BYTES = 120


class GivenUp(msgspec.Struct, frozen=True):
    """A block that was given up because no message of it came for long."""

    offsets: dict[str, int]  # by source, where its messages begin
    high_water: dict[str, int]  # by source, how far it was read when the block was given up
    lacks: Missing
    is_open: bool  # whether its Batch message had arrived

    def missing(self) -> Missing:
        return self.lacks


class PendingBlock:
    """One block that is not complete yet. The `take_…` methods take its messages, in any order.

    `born` and `touched`: the numbers of the first and of the last message of the block, counted over all blocks.
    `is_too_large`: whether its contents were dropped because they need too much memory.

    Invariant: once the Batch message has arrived, `missing_count` is the number of headers, items and counted messages
        that have not arrived. At 0 the block is complete."""

    def __init__(self, hash_: bytes, born: int = 0) -> None:
        self.hash = hash_
        self.born = born
        self.is_too_large = False
        self.batch: Batch | None = None
        self.values: dict[str, bytes] = {}
        self.deletes: set[str] = set()
        self.headers: dict[bytes, int] = {}
        self.items: dict[bytes, dict[int, SubBatchMsg]] = {}
        self.room: dict[str, int] = {}
        self.wanted_ids: frozenset[bytes] = frozenset()
        self.missing_count = 0
        self.offsets: dict[str, int] = {}
        self.high_water: dict[str, int] = {}
        self.size_bytes = 0
        self.touched = 0
        self._unwanted: frozenset[str] = frozenset()
        self._unwanted_ids: frozenset[bytes] = frozenset()
        self._lengths: tuple[int, ...] = ()

    def rank(self) -> tuple[float, int]:
        """Returns a key for sorting: the block that is needed last has the highest key."""
        return (math.inf if self.batch is None else self.batch.number, self.born)

    def empty(self) -> None:
        self.values, self.deletes, self.headers, self.items = {}, set(), {}, {}
        self.size_bytes = 0

    def open(self, batch: Batch, tracked: Tracked) -> Iterator[tuple[Receipt, str]]:
        """Takes the Batch message, and checks all earlier messages against it; the caller must iterate to the end.
        Yields (outcome, name) for each earlier message that cannot be used, and for some that can (outcome TAKEN)."""
        self.batch = batch
        # Only prefixes that the consumer wants are counted. The others are noted to tell them from unannounced ones.
        self.room = {prefix: count for prefix, count in batch.counts.items() if prefix in tracked}
        self._unwanted = frozenset(batch.counts.keys() - self.room.keys())
        self._lengths = tuple(sorted({len(prefix) for prefix in batch.counts}, reverse=True))
        self.wanted_ids = frozenset(id_ for path, id_ in batch.sub_batches.items() if path in tracked)
        self._unwanted_ids = frozenset(batch.sub_batches.values()) - self.wanted_ids
        # Headers count from now on, and the items of each from the arrival of its header.
        self.missing_count = sum(self.room.values()) + len(self.wanted_ids)
        # The early messages are taken once more, now as messages of an announced block.
        early = self.values, self.deletes, self.headers, self.items
        self.values, self.deletes, self.headers, self.items = {}, set(), {}, {}
        names = (*batch.values, *batch.deletes, *batch.counts, *batch.sub_batches)
        contents_bytes = sum(map(len, batch.values.values()))
        self.size_bytes = contents_bytes + sum(map(len, names)) + len(names) * ENTRY_BYTES
        return self._replay(*early)

    def take_value(self, key: str, value: bytes) -> Receipt:
        if key in self.values:
            return DUPLICATE
        # Before the Batch message everything is kept: only the Batch says what belongs to the block.
        outcome = TAKEN if self.batch is None else self._use_room(key)
        if outcome is TAKEN:
            self.values[key] = value
            self.size_bytes += len(key) + len(value) + ENTRY_BYTES
        return outcome

    def take_delete(self, key: str) -> Receipt:
        if key in self.deletes:
            return DUPLICATE
        outcome = TAKEN if self.batch is None else self._use_room(key)
        if outcome is TAKEN:
            self.deletes.add(key)
            self.size_bytes += len(key) + ENTRY_BYTES
        return outcome

    def take_header(self, id_: bytes, item_count: int) -> tuple[Receipt, list[int]]:
        """Takes the header of a sub batch. Returns the outcome, and the indexes of the dropped items, which came before
        the header and are beyond its count."""
        if id_ in self.headers:
            return DUPLICATE, []
        if self.batch is not None and id_ not in self.wanted_ids:
            return self._unwanted_id(id_), []
        self.headers[id_] = item_count
        self.size_bytes += ENTRY_BYTES
        if self.batch is None:
            return TAKEN, []
        # Items can come before their header. Those that it does not announce are dropped, the others are not missing
        # any more.
        items = self.items.get(id_, {})
        beyond = [index for index in items if index >= item_count]
        for index in beyond:
            self.size_bytes -= _size_of(items.pop(index))
        self.missing_count += item_count - len(items) - 1
        return TAKEN, beyond

    def take_item(self, message: SubBatchMsg) -> Receipt:
        id_ = message.id
        if self.batch is not None and id_ not in self.wanted_ids:
            return self._unwanted_id(id_)
        # An item is kept until the Batch and its header arrive: only the header tells how many items there are.
        count = None if self.batch is None else self.headers.get(id_)
        if count is not None and message.index >= count:
            return Receipt.NO_SUCH_ITEM
        items = self.items.setdefault(id_, {})
        if message.index in items:
            return DUPLICATE
        items[message.index] = message
        self.size_bytes += _size_of(message)
        if count is not None:
            self.missing_count -= 1
        return TAKEN

    def finish(self, tracked: Tracked) -> CompleteBatch:
        """Puts the block's contents together and returns them. The block must be complete."""
        batch = self.batch
        assert batch is not None
        assert self.missing_count == 0
        # An empty entry under the name of a counted prefix is a count of 0, not a value.
        values = {
            key: v for key, v in batch.values.items() if key in tracked and not (tracked.is_counted(key) and not v)
        }
        deletes = {key for key in batch.deletes if key in tracked} | self.deletes
        # A key that has a value from the Batch keeps it, even an empty one (specification, "BatchMsg"; the reference
        # consumer replaces an empty one). Sub batches come last, by id and index, and replace earlier values. Deletes
        # are a set of their own, since a key can be both updated and deleted.
        for key, value in self.values.items():
            values.setdefault(key, value)
        for id_ in sorted(self.items):
            items = self.items[id_]
            for index in sorted(items):
                values.update(items[index].updates)
                deletes.update(items[index].deletes)
        return CompleteBatch(
            hash=self.hash,
            number=batch.number,
            parent=batch.parent,
            weight=batch.weight,
            values=values,
            deletes=frozenset(deletes),
            offsets=self.offsets,
            resumption=self.high_water | self.offsets,
            size_bytes=self.size_bytes,
        )

    def missing(self) -> Missing:
        """Returns the missing messages, with at most `MISSING_ITEMS_SHOWN` indexes of each sub batch."""
        early = len(self.values) + len(self.deletes) + len(self.headers) + sum(map(len, self.items.values()))
        if self.batch is None:
            return Missing(MissingState.BATCH, early_messages=early)
        items: dict[bytes, tuple[int, ...]] = {}
        for id_, count in self.headers.items():
            have = self.items.get(id_, {})
            if len(have) < count:
                # The number of items is the producer's claim, so the search ends at the first few.
                absent = (index for index in range(count) if index not in have)
                items[id_] = tuple(index for index, _ in zip(absent, range(MISSING_ITEMS_SHOWN), strict=False))
        return Missing(
            MissingState.PARTS,
            number=self.batch.number,
            messages=self.missing_count,
            prefixes={prefix: room for prefix, room in self.room.items() if room},
            headers=tuple(sorted(self.wanted_ids - self.headers.keys())),
            items=items,
        )

    def _replay(
        self,
        values: dict[str, bytes],
        deletes: set[str],
        headers: dict[bytes, int],
        items: dict[bytes, dict[int, SubBatchMsg]],
    ) -> Iterator[tuple[Receipt, str]]:
        for key, value in values.items():
            outcome = self.take_value(key, value)
            if outcome is not TAKEN:
                yield outcome, key
        for key in deletes:
            yield self.take_delete(key), key
        # Headers before items, so that each item meets its number.
        for id_, count in headers.items():
            yield self.take_header(id_, count)[0], id_.hex()
        for id_, messages in items.items():
            for index, message in messages.items():
                yield self.take_item(message), name_of_item(id_, index)

    def _use_room(self, key: str) -> Receipt:
        outcome = UNANNOUNCED
        # Longest prefix first. A full counter passes the key on to the next shorter prefix. If no counter was full, an
        # unwanted prefix ends the search.
        for length in self._lengths:
            prefix = key[:length]
            room = self.room.get(prefix)
            if room:
                self.room[prefix] = room - 1
                self.missing_count -= 1
                return TAKEN
            # One message more than announced, unless a shorter prefix has room.
            if room == 0:
                outcome = Receipt.OVER_COUNT
            elif prefix in self._unwanted and outcome is UNANNOUNCED:
                return Receipt.UNTRACKED
        return outcome

    def _unwanted_id(self, id_: bytes) -> Receipt:
        return Receipt.UNTRACKED if id_ in self._unwanted_ids else Receipt.UNANNOUNCED


def name_of_item(id_: bytes, index: int) -> str:
    return f"item {index} of sub batch {id_.hex()}"


def _size_of(message: SubBatchMsg) -> int:
    updates = sum(len(key) + len(value) for key, value in message.updates.items())
    entries = len(message.updates) + len(message.deletes) + 1
    return updates + sum(map(len, message.deletes)) + entries * ENTRY_BYTES
