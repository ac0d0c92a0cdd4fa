"""Keeps the root hashes of durable blocks that are not acknowledged yet, and the session that sent each block. No I/O.
The root hashes show a publisher whether the node has stored another block with the same number."""

from __future__ import annotations

import msgspec

from block_node.protocol import DurableBlock

NAMED_MAX = 500
"""The most blocks that one acknowledgement lists. At 60 bytes per block, the list fits into a frame of 65,000 bytes,
the limit of the legacy framing. Publishers request other root hashes from the service `block_get`."""


class DurableRoot(msgspec.Struct, frozen=True):
    """The root hash of one durable block, and the session that sent it; None if it came from another source."""

    root: bytes
    owner: int | None


class DurableRoots:
    """The root hashes of the durable blocks that are not acknowledged yet.

    Invariant: all block numbers are above the last acknowledged block. There are at most NAMED_MAX of them.
    """

    def __init__(self) -> None:
        self._roots: dict[int, DurableRoot] = {}

    def note(self, block_number: int, root: bytes, owner: int | None) -> None:
        """Notes a root hash, unless it is empty. Above NAMED_MAX, the root hash of the highest block is dropped."""
        if not root:
            return
        if len(self._roots) >= NAMED_MAX and (highest := max(self._roots)) > block_number:
            del self._roots[highest]
        if len(self._roots) < NAMED_MAX:
            self._roots[block_number] = DurableRoot(root, owner)

    def take(self, last_block: int) -> dict[int, DurableRoot]:
        return {number: self._roots.pop(number) for number in sorted(self._roots) if number <= last_block}


def named(roots: dict[int, DurableRoot], session_id: int) -> list[DurableBlock]:
    """Converts root hashes to the block list of an acknowledgement, which says whether a block is the session's own."""
    return [DurableBlock(number, each.root, each.owner == session_id) for number, each in roots.items()]
