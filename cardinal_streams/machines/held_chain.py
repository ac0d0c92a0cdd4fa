"""The newest part of the chain, which is kept in memory: the head, the blocks that a reorg can remove, and the block
before them, which can be the common ancestor of a reorg."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

from cardinal_streams.machines.fork_tree import TreeNode


class HeldChain:
    """The nodes of the newest part of the chain, from the lowest, which can be a hash alone, to the head: at most
    `removable_max` + 1. Invariant: the parent of each node is the node before it. `_heights` grows by 1 from each to
    the next."""

    def __init__(self, removable_max: int) -> None:
        self.removable_max = removable_max
        self._nodes: deque[TreeNode] = deque()
        self._heights: dict[bytes, int] = {}
        self.is_final = False

    @property
    def head(self) -> TreeNode | None:
        return self._nodes[-1] if self._nodes else None

    @property
    def lowest(self) -> TreeNode:
        return self._nodes[0]

    @property
    def final_number(self) -> int | None:
        """The number of the lowest block here, if it is final and its number is known."""
        return self._nodes[0].number if self.is_final else None

    def restart(self, node: TreeNode, is_final: bool) -> None:
        self._nodes = deque((node,))
        self._heights = {node.hash: 0}
        self.is_final = is_final or self.removable_max == 0

    def push(self, node: TreeNode) -> TreeNode | None:
        """Adds a node as the new head. Returns the lowest node if it had to leave, else None."""
        self._heights[node.hash] = self._heights[self._nodes[-1].hash] + 1
        self._nodes.append(node)
        dropped = None
        # The lowest node leaves if more blocks follow it than reorgs can remove.
        if len(self._nodes) > self.removable_max + 1:
            dropped = self._nodes.popleft()
            del self._heights[dropped.hash]
        # The lowest block stays final, even if a reorg makes the chain shorter.
        self.is_final = self.is_final or len(self._nodes) > self.removable_max
        return dropped

    def push_below(self, node: TreeNode) -> None:
        assert not self.is_final
        self._heights[node.hash] = self._heights[self._nodes[0].hash] - 1
        self._nodes.appendleft(node)
        self.is_final = len(self._nodes) > self.removable_max

    def cut_above(self, node: TreeNode) -> list[TreeNode]:
        """Removes the nodes after `node`, up to and including the head, and returns them in ascending order."""
        removed = self.above(node)
        for other in removed:
            self._nodes.pop()
            del self._heights[other.hash]
        return removed

    def above(self, node: TreeNode) -> list[TreeNode]:
        # Heights make the distance known without a search.
        count = self._heights[self._nodes[-1].hash] - self._heights[node.hash]
        found = [self._nodes[-1 - index] for index in range(count)]
        found.reverse()
        return found

    def check(self) -> None:
        nodes = list(self._nodes)
        assert len(nodes) <= self.removable_max + 1
        assert self._heights.keys() == {node.hash for node in nodes}
        for below, node in itertools.pairwise(nodes):
            assert node.parent == below.hash
            assert node.batch is not None
            assert self._heights[node.hash] == self._heights[below.hash] + 1
            assert below.number is None or node.number is None or below.number < node.number

    def __contains__(self, hash_: bytes) -> bool:
        return hash_ in self._heights

    def __iter__(self) -> Iterator[TreeNode]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
