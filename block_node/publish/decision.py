"""Decides the answer to the header of a block, as a pure function of the blocks that the node has or receives.

It follows specs/block_publish.md, "Base Protocol", and adds a rule for several publishers: the first one that sends the
header of a block sends the block, and all others skip it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec


class HeaderDecision(enum.Enum):
    """The answer to the header of a block. DUPLICATE: it is acknowledged already. SKIP: another publisher sends it, or
    the node has it. BEHIND: its number is too high for the node."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    SKIP = "skip"
    BEHIND = "behind"


class PublishView(msgspec.Struct, frozen=True):
    """The facts that decide the answer to a header.

    - last_block: the highest block up to which all blocks are verified and durable.
    - next_durable: the lowest block that is not durable: after `last_block`, or the first block of an empty node.
    - taken: the blocks above `last_block` that are durable, in flight, or backfilled and being stored.
    - crowded: whether the blocks in flight have reached a limit, so that only the lowest missing block is accepted.
    """

    last_block: int | None
    next_durable: int
    taken: Collection[int]
    crowded: bool = False

    @property
    def wanted(self) -> int:
        block_number = self.next_durable
        while block_number in self.taken:
            block_number += 1
        return block_number

    @property
    def frontier(self) -> int:
        """The highest block number that the node may accept, after all blocks in `taken`."""
        return max(self.taken, default=self.next_durable - 1) + 1

    @property
    def fresh(self) -> bool:
        """Whether no block of the chain has arrived yet. Only then may the first block be lower than configured."""
        return not self.taken and (self.last_block is None or self.last_block < self.next_durable - 1)


def decide(block_number: int, view: PublishView) -> HeaderDecision:
    if view.last_block is not None and block_number <= view.last_block:
        return HeaderDecision.DUPLICATE
    if block_number in view.taken:
        return HeaderDecision.SKIP
    if block_number < view.next_durable:
        return HeaderDecision.ACCEPT if view.fresh else HeaderDecision.SKIP
    if block_number > view.frontier or (view.crowded and block_number != view.wanted):
        return HeaderDecision.BEHIND
    return HeaderDecision.ACCEPT
