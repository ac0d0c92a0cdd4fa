"""The watermark: the block up to which all blocks are verified and durable. It passes no hole, and never goes back."""

from __future__ import annotations

from collections.abc import Collection


class Watermark:
    """last_block: the watermark; None where nothing is durable. next_durable: the one that moves it on.

    first_block: with which the chain of an empty node begins, or where what is stored ends before it. The first header
    may begin it lower (`begin_at`), as long as nothing of it is durable.
    Invariant: what is in `above` is durable and above `next_durable`, which is not.
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
        """The chain begins with this block, if it comes."""
        assert not self._begun, "a chain begins once"
        self.next_durable = block_number

    def forget_begin(self) -> None:
        """No block is in flight any more. If none became durable either, the chain has not begun."""
        if not self._begun:
            self.next_durable = self._start

    def durable(self, block_number: int) -> bool:
        """This block, which is not below `next_durable`, is durable. Returns whether the watermark moved."""
        self._above.add(block_number)
        before = self.next_durable
        while self.next_durable in self._above:
            self._above.remove(self.next_durable)
            self.last_block = self.next_durable
            self.next_durable += 1
            self._begun = True
        return self.next_durable != before

    def check(self) -> None:
        """The invariant."""
        assert all(block_number > self.next_durable for block_number in self._above)
        assert self.last_block is None or self.last_block < self.next_durable
