"""The chain as far as it is held: the head, and below it as many blocks as a reorg may remove, and one more, which
may be a common ancestor but not be removed."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

from cardinal_streams.machines.fork_tree import Node


class HeldChain:
    """Nodes from the lowest to the head, at most `removable_max` + 1.

    The lowest may be known by its hash only, the others are whole. Once as many blocks as may be removed lie on the
    lowest block it is final, and stays so when a reorg makes the chain shorter: it never gives way to a lower one.

    Invariant: heights of neighbours differ by 1, and each node's parent is the node below.
    """

    __slots__ = ("_heights", "_nodes", "is_final", "removable_max")

    def __init__(self, removable_max: int) -> None:
        self.removable_max = removable_max
        self._nodes: deque[Node] = deque()
        self._heights: dict[bytes, int] = {}
        self.is_final = False

    @property
    def head(self) -> Node | None:
        return self._nodes[-1] if self._nodes else None

    @property
    def lowest(self) -> Node:
        return self._nodes[0]

    @property
    def final_number(self) -> int | None:
        """The number of the final block, if there is one and its number is known."""
        return self._nodes[0].number if self.is_final else None

    def restart(self, node: Node, is_final: bool) -> None:
        """The chain is this node alone."""
        self._nodes = deque((node,))
        self._heights = {node.hash: 0}
        self.is_final = is_final or self.removable_max == 0

    def push(self, node: Node) -> Node | None:
        """A new head. Returns the lowest node if it has to give way."""
        self._heights[node.hash] = self._heights[self._nodes[-1].hash] + 1
        self._nodes.append(node)
        dropped = None
        if len(self._nodes) > self.removable_max + 1:
            dropped = self._nodes.popleft()
            del self._heights[dropped.hash]
        self.is_final = self.is_final or len(self._nodes) > self.removable_max
        return dropped

    def push_below(self, node: Node) -> None:
        """A new lowest node, which is the parent of the one that was."""
        assert not self.is_final
        self._heights[node.hash] = self._heights[self._nodes[0].hash] - 1
        self._nodes.appendleft(node)
        self.is_final = len(self._nodes) > self.removable_max

    def cut_above(self, node: Node) -> list[Node]:
        """Removes the nodes above this one, and returns them ascending."""
        removed = self.above(node)
        for other in removed:
            self._nodes.pop()
            del self._heights[other.hash]
        return removed

    def above(self, node: Node) -> list[Node]:
        """The nodes above this one, ascending."""
        count = self._heights[self._nodes[-1].hash] - self._heights[node.hash]
        found = [self._nodes[-1 - index] for index in range(count)]
        found.reverse()
        return found

    def check(self) -> None:
        """Asserts the invariant."""
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

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
