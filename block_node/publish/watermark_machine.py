"""The watermark: the block up to which all blocks are verified and durable. It never passes a missing block, and never
goes back."""

from __future__ import annotations

from collections.abc import Collection


class Watermark:
    """The watermark of one chain.

    last_block: the watermark; None if no block is durable. next_durable: the block that moves the watermark on.
    first_block: the first block of the chain of an empty node, also used if the stored blocks end before it. The first
    header may begin the chain lower (`begin_at`), as long as no block of it is durable. Invariant: the blocks in
    `above` are durable and above `next_durable`, which is not durable.
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
        """Lets the chain begin with this block, if the block arrives."""
        assert not self._begun, "a chain begins once"
        self.next_durable = block_number

    def forget_begin(self) -> None:
        """Notes that no block is in flight. If no block became durable either, the chain has not begun."""
        if not self._begun:
            self.next_durable = self._start

    def durable(self, block_number: int) -> bool:
        """Notes that a block, not below `next_durable`, is durable. Returns whether the watermark moved."""
        self._above.add(block_number)
        before = self.next_durable
        while self.next_durable in self._above:
            self._above.remove(self.next_durable)
            self.last_block = self.next_durable
            self.next_durable += 1
            self._begun = True
        return self.next_durable != before

    def check(self) -> None:
        """Checks the invariant."""
        assert all(block_number > self.next_durable for block_number in self._above)
        assert self.last_block is None or self.last_block < self.next_durable
