"""Decides the answer to an offered block: one pure function of the blocks that the node has and the blocks in flight.

It follows specs/block_publish.md, "Base Protocol", and adds the rule for several publishers: the first publisher that
sends the header of a block sends the block, and all others skip it. It changes no state;
`block_node.publish.publish_machine` does.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec


class Verdict(enum.Enum):
    """The answer to an offered block. ACCEPT: the publisher sends it. DUPLICATE: the node has this block or a later
    one. SKIP: the block is in flight already. BEHIND: the block is too high for the node."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    SKIP = "skip"
    BEHIND = "behind"


class PublishView(msgspec.Struct, frozen=True):
    """The facts on which the decision is based.

    last_block: the highest block up to which all blocks are verified and durable; None if there is no such block.
    next_durable: the block that moves `last_block` on: the block after it, or the first configured block of an empty
    node. taken: the blocks above `last_block` that are in flight or already durable. crowded: whether so much is in
    flight that only the lowest missing block is accepted.
    """

    last_block: int | None
    next_durable: int
    taken: Collection[int]
    crowded: bool = False

    @property
    def wanted(self) -> int:
        """The lowest block that no publisher sends and the node does not have."""
        block_number = self.next_durable
        while block_number in self.taken:
            block_number += 1
        return block_number

    @property
    def frontier(self) -> int:
        """The block after all taken blocks; no higher block can be begun."""
        return max(self.taken, default=self.next_durable - 1) + 1

    @property
    def fresh(self) -> bool:
        """Whether the chain has not begun, so that its first block may be below the configured first block."""
        return not self.taken and (self.last_block is None or self.last_block < self.next_durable - 1)


def decide(block_number: int, view: PublishView) -> Verdict:
    """Returns the answer to the header of a block."""
    if view.last_block is not None and block_number <= view.last_block:
        return Verdict.DUPLICATE
    if block_number in view.taken:
        return Verdict.SKIP
    if block_number < view.next_durable:
        return Verdict.ACCEPT if view.fresh else Verdict.SKIP
    if block_number > view.frontier or (view.crowded and block_number != view.wanted):
        return Verdict.BEHIND
    return Verdict.ACCEPT
