"""The highest block up to which all blocks are durable, and the root hashes of durable blocks that are not acknowledged
yet: they show a publisher whether the node has stored another block with the same number."""

from __future__ import annotations

from typing import TypeAlias

from block_node.protocol import DurableBlock

NAMED_MAX = 500
"""The most blocks that one acknowledgement lists. At 60 bytes per block, the list fits into a frame of 65,000 bytes,
the limit of the legacy framing. Publishers request other root hashes from the service `block_get`."""


class Watermark:
    """`last_block` passes no missing block, and never falls. Until a block of the chain is durable, `begin_at` can set
    a lower first block than the configured one.

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


class DurableRoots:
    """The root hashes of the durable blocks that are not acknowledged yet.

    Invariant: all block numbers are above the last acknowledged block. There are at most NAMED_MAX of them.
    """

    def __init__(self) -> None:
        self._roots: dict[int, DurableRoot] = {}

    def note(self, block_number: int, root: bytes, owner: int | None) -> None:
        """Notes a root hash, unless it is empty. Above NAMED_MAX, the root hash of the highest block is dropped."""
        if not root:
            return
        if len(self._roots) >= NAMED_MAX and (highest := max(self._roots)) > block_number:
            del self._roots[highest]
        if len(self._roots) < NAMED_MAX:
            self._roots[block_number] = (root, owner)

    def take(self, last_block: int) -> dict[int, DurableRoot]:
        return {number: self._roots.pop(number) for number in sorted(self._roots) if number <= last_block}


def named(roots: dict[int, DurableRoot], session_id: int) -> list[DurableBlock]:
    """Converts root hashes to the block list of an acknowledgement to this session."""
    return [DurableBlock(number, root, owner == session_id) for number, (root, owner) in roots.items()]
