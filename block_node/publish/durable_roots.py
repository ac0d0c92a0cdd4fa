"""Keeps the roots of durable blocks that are not acknowledged yet, and which session sent each block. Pure.

An acknowledgement names these roots, so that a publisher can tell its own block from another block with the same
number.
"""

from __future__ import annotations

import msgspec

from block_node.protocol import DurableBlock

NAMED_MAX = 500
"""The largest number of blocks in one acknowledgement. At 60 bytes each they fit into the smallest frame. Publishers
look up the roots of other blocks."""


class DurableRoot(msgspec.Struct, frozen=True):
    """The root of one durable block. owner: the session that sent this block; None if the block came from another
    source, or the session has left."""

    root: bytes
    owner: int | None


class DurableRoots:
    """The roots of the durable blocks that are not acknowledged yet.

    Invariant: all block numbers are above the last acknowledged one, and there are at most NAMED_MAX of them.
    """

    def __init__(self) -> None:
        self._roots: dict[int, DurableRoot] = {}

    def note(self, block_number: int, root: bytes, owner: int | None) -> None:
        """Notes that a block is durable. Only the lowest NAMED_MAX roots are kept, since they are acknowledged
        first."""
        if not root:
            return
        if len(self._roots) >= NAMED_MAX and (highest := max(self._roots)) > block_number:
            del self._roots[highest]
        if len(self._roots) < NAMED_MAX:
            self._roots[block_number] = DurableRoot(root, owner)

    def take(self, last_block: int) -> dict[int, DurableRoot]:
        """Removes and returns the roots of all blocks up to `last_block`, which is acknowledged now."""
        return {number: self._roots.pop(number) for number in sorted(self._roots) if number <= last_block}


def named(roots: dict[int, DurableRoot], session_id: int) -> list[DurableBlock]:
    """Returns the roots in the form of an acknowledgement to one session."""
    return [DurableBlock(number, each.root, each.owner == session_id) for number, each in roots.items()]
