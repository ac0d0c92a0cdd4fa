"""The watermark: the highest block up to which all blocks are verified and durable. The watermark never passes a
missing block, and never falls."""

from __future__ import annotations

from collections.abc import Collection


class Watermark:
    """The watermark of one chain: the highest block up to which all blocks are verified and durable.

    last_block: the watermark. None if no block is durable.
    next_durable: the lowest block that is not durable. When it becomes durable, the watermark rises.
    first_block: the configured first block of the chain, used if the node is empty or if all its stored blocks have
    lower numbers. Until a block of the chain is durable, `begin_at` can set a lower first block.

    Invariant: `above` has the durable blocks that wait for `next_durable`, which is lower and not durable.
    """

    def __init__(self, last_block: int | None, first_block: int) -> None:
        self._start = first_block if last_block is None else max(first_block, last_block + 1)
        self._begun = last_block == self._start - 1
        self._above: set[int] = set()
        self.last_block = last_block
        self.next_durable = self._start

    @property
    def above(self) -> Collection[int]:
        return self._above

    def begin_at(self, block_number: int) -> None:
        """Sets the first block of the chain to `block_number`. The choice is final when this block is durable."""
        assert not self._begun, "a chain begins once"
        self.next_durable = block_number

    def forget_begin(self) -> None:
        """Resets the first block of the chain to the configured one, if no block of the chain is durable. Called when
        no block is in flight."""
        if not self._begun:
            self.next_durable = self._start

    def durable(self, block_number: int) -> bool:
        """Notes that a block is durable. The block must not be below `next_durable`. Returns whether the watermark
        (`last_block`) rose."""
        self._above.add(block_number)
        before = self.next_durable
        while self.next_durable in self._above:
            self._above.remove(self.next_durable)
            self.last_block = self.next_durable
            self.next_durable += 1
            self._begun = True
        return self.next_durable != before

    def check(self) -> None:
        """Raises AssertionError if the invariant of the class does not hold."""
        assert all(block_number > self.next_durable for block_number in self._above)
        assert self.last_block is None or self.last_block < self.next_durable
