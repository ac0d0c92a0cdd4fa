"""The roots of blocks that are durable and not acknowledged yet, and which sessions sent them. Pure.

An acknowledgement names them, so that a publisher can tell its own block from another one with the same number.
"""

from __future__ import annotations

import msgspec

from block_node.protocol import DurableBlock

NAMED_MAX = 500
"""Blocks in one acknowledgement: with 60 bytes each they fit into the smallest frame. Publishers look up the others."""


class DurableRoot(msgspec.Struct, frozen=True):
    """owner: the session that sent this very block; None where it came in another way, or the session has left."""

    root: bytes
    owner: int | None


class DurableRoots:
    """Invariant: all numbers are above the last acknowledged one, and there are at most NAMED_MAX of them."""

    def __init__(self) -> None:
        self._roots: dict[int, DurableRoot] = {}

    def note(self, block_number: int, root: bytes, owner: int | None) -> None:
        """This block is durable. Only the lowest NAMED_MAX roots are kept, since those are acknowledged first."""
        if not root:
            return
        if len(self._roots) >= NAMED_MAX and (highest := max(self._roots)) > block_number:
            del self._roots[highest]
        if len(self._roots) < NAMED_MAX:
            self._roots[block_number] = DurableRoot(root, owner)

    def take(self, last_block: int) -> dict[int, DurableRoot]:
        """Remove and return the roots of all blocks up to the one that is acknowledged now."""
        return {number: self._roots.pop(number) for number in sorted(self._roots) if number <= last_block}


def named(roots: dict[int, DurableRoot], session_id: int) -> list[DurableBlock]:
    """The roots in the form in which one session is told them."""
    return [DurableBlock(number, each.root, each.owner == session_id) for number, each in roots.items()]
