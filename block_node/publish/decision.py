"""What the node answers to an offered block: one pure function of what it has and what is on its way to it.

It follows specs/block_publish.md, "Base Protocol", and adds what several publishers need: the first header of a block
wins, and everybody else skips it. It changes nothing; `block_node.publish.publish_machine` does.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec


class Verdict(enum.Enum):
    """ACCEPT: send it. DUPLICATE: the node has it, or a later one. SKIP: it is on its way. BEHIND: it is too early."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    SKIP = "skip"
    BEHIND = "behind"


class PublishView(msgspec.Struct, frozen=True):
    """What the decision is made from.

    last_block: the highest block up to which all are verified and durable; None where there is none yet.
    next_durable: the block that moves it on: one more, or the first block that an empty node is configured for.
    taken: the blocks above that are on their way, or durable already.
    crowded: so much is on its way that only the lowest block that is missing is welcome.
    """

    last_block: int | None
    next_durable: int
    taken: Collection[int]
    crowded: bool = False

    @property
    def wanted(self) -> int:
        """The lowest block that nobody sends and the node does not have."""
        block_number = self.next_durable
        while block_number in self.taken:
            block_number += 1
        return block_number

    @property
    def frontier(self) -> int:
        """The block behind all that are taken; no higher one can be begun."""
        return max(self.taken, default=self.next_durable - 1) + 1

    @property
    def fresh(self) -> bool:
        """The chain has not begun: its first block may be below the one that the node is configured for."""
        return not self.taken and (self.last_block is None or self.last_block < self.next_durable - 1)


def decide(block_number: int, view: PublishView) -> Verdict:
    """The answer to the header of this block."""
    if view.last_block is not None and block_number <= view.last_block:
        return Verdict.DUPLICATE
    if block_number in view.taken:
        return Verdict.SKIP
    if block_number < view.next_durable:
        return Verdict.ACCEPT if view.fresh else Verdict.SKIP
    if block_number > view.frontier or (view.crowded and block_number != view.wanted):
        return Verdict.BEHIND
    return Verdict.ACCEPT
