"""Keeps the root hashes of durable blocks that are not acknowledged yet, and the session that sent each block. No I/O.

An acknowledgement lists these root hashes. A publisher compares them with its own, and so notices if the node stored
another block with the same number.
"""

from __future__ import annotations

import msgspec

from block_node.protocol import DurableBlock

NAMED_MAX = 500
"""The maximum number of blocks whose root hashes one acknowledgement lists. At 60 bytes per block, the list fits into a
frame of 65,000 bytes, the limit of the legacy framing. Publishers request the root hashes of other blocks from the
service `block_get`.
"""


class DurableRoot(msgspec.Struct, frozen=True):
    """The root hash of one durable block.

    owner: the number of the session that sent the block. None if the stored block came from another source, or if that
    session has ended.
    """

    root: bytes
    owner: int | None


class DurableRoots:
    """The root hashes of the durable blocks that are not acknowledged yet.

    Invariant: all block numbers are above the last acknowledged block. There are at most NAMED_MAX of them.
    """

    def __init__(self) -> None:
        self._roots: dict[int, DurableRoot] = {}

    def note(self, block_number: int, root: bytes, owner: int | None) -> None:
        """Notes the root hash of a durable block, unless it is empty. If there are more than NAMED_MAX root hashes, the
        one of the highest block is dropped, because low blocks are acknowledged first.

        owner: the number of the session that sent the block, or None (`DurableRoot`).
        """
        if not root:
            return
        if len(self._roots) >= NAMED_MAX and (highest := max(self._roots)) > block_number:
            del self._roots[highest]
        if len(self._roots) < NAMED_MAX:
            self._roots[block_number] = DurableRoot(root, owner)

    def take(self, last_block: int) -> dict[int, DurableRoot]:
        """Removes and returns the root hashes of all blocks up to `last_block`, which is being acknowledged."""
        return {number: self._roots.pop(number) for number in sorted(self._roots) if number <= last_block}


def named(roots: dict[int, DurableRoot], session_id: int) -> list[DurableBlock]:
    """Converts noted root hashes to the block list of an acknowledgement to the session `session_id`.

    In that list, a block has `own` True if this session sent it.
    """
    return [DurableBlock(number, each.root, each.owner == session_id) for number, each in roots.items()]
