"""The waiting blocks: blocks of forks, and blocks whose parent is missing, by their numbers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from cardinal_streams.machines.fork_tree import TreeNode

# The heap may have this many entries of removed blocks, plus one more for each waiting block.
STALE_ENTRIES_MAX = 256


class WaitingBlocks:
    """The waiting blocks (blocks that are not on the chain), with their contents. Invariant: `size_bytes` is the sum of
    their sizes, and each has an entry in the heap of numbers."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, TreeNode] = {}
        self._numbers: list[tuple[int, bytes]] = []
        self.size_bytes = 0

    def put(self, node: TreeNode) -> None:
        assert node.batch is not None
        assert node.hash not in self._nodes
        self._nodes[node.hash] = node
        self.size_bytes += node.batch.size_bytes
        heapq.heappush(self._numbers, (node.batch.number, node.hash))
        # Removed blocks leave their entries behind, so the heap is made anew from time to time.
        if len(self._numbers) > 2 * len(self._nodes) + STALE_ENTRIES_MAX:
            self._numbers = [(other.number or 0, other.hash) for other in self._nodes.values()]
            heapq.heapify(self._numbers)

    def remove(self, node: TreeNode) -> None:
        assert node.batch is not None
        del self._nodes[node.hash]
        self.size_bytes -= node.batch.size_bytes

    def highest(self) -> TreeNode:
        """Returns the block with the highest number. Among equals, the choice depends on the hash alone."""
        return max(self._nodes.values(), key=lambda node: (node.number or 0, node.hash))

    def up_to(self, number: int) -> list[TreeNode]:
        """Returns the waiting blocks with at most this number, and removes their entries from the heap. So the caller
        must remove each block or pass it to `put_off`."""
        found: dict[bytes, TreeNode] = {}
        while self._numbers and self._numbers[0][0] <= number:
            # An entry can be that of a block that was removed.
            node = self._nodes.get(heapq.heappop(self._numbers)[1])
            if node is not None:
                found[node.hash] = node
        return list(found.values())

    def put_off(self, node: TreeNode, number: int) -> None:
        """Makes `up_to` return this block again when it is called with `number` or a higher number."""
        heapq.heappush(self._numbers, (number, node.hash))

    def check(self) -> None:
        assert self.size_bytes == sum(node.batch.size_bytes for node in self if node.batch is not None)
        assert {node.hash for node in self} <= {hash_ for _, hash_ in self._numbers}

    def __contains__(self, hash_: bytes) -> bool:
        return hash_ in self._nodes

    def __iter__(self) -> Iterator[TreeNode]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)
