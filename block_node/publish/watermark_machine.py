"""The highest block up to which all blocks are verified and durable. It passes no missing block, and never falls."""

from __future__ import annotations

from collections.abc import Collection


class Watermark:
    """The watermark of one chain, `last_block`. Until a block of the chain is durable, `begin_at` can set a lower first
    block than the configured one.

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
        assert not self._begun, "a chain begins once"
        self.next_durable = block_number

    def forget_begin(self) -> None:
        if not self._begun:
            self.next_durable = self._start

    def durable(self, block_number: int) -> bool:
        """Notes that a block, not below `next_durable`, is durable. Returns whether the watermark rose."""
        self._above.add(block_number)
        before = self.next_durable
        while self.next_durable in self._above:
            self._above.remove(self.next_durable)
            self.last_block = self.next_durable
            self.next_durable += 1
            self._begun = True
        return self.next_durable != before

    def check(self) -> None:
        assert all(block_number > self.next_durable for block_number in self._above)
        assert self.last_block is None or self.last_block < self.next_durable
