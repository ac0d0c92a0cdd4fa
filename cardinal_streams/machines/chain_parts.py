"""The parts of `ChainBlocks`: a tree of blocks, and the newest part of the chain."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from cardinal_streams.payload import CompleteBatch


class TreeNode(msgspec.Struct, eq=False):
    """A block in a `ChainTree`. `batch` is None until the contents of the block have arrived. `number` is None while
    the block is only known as a parent. `due`: a waiting block is dropped when the final block has this number, unless
    the waiting block is heavier than the head."""

    hash: bytes
    number: int | None = None
    parent: bytes | None = None
    weight: int = 0
    batch: CompleteBatch | None = None
    due: int = 0


class ChainTree:
    """A tree of blocks: a node for each hash, and the children of each hash in the order of their arrival. Unlike in
    the tree of `block_manager`, a block has a weight, its parent can be missing, and a node can be only a hash.
    Invariant: a node is listed as a child of its parent's hash, and every listed child is a node of the tree."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, TreeNode] = {}
        self._children: dict[bytes, dict[bytes, TreeNode]] = {}

    def find(self, hash_: bytes) -> TreeNode | None:
        return self._nodes.get(hash_)

    def add(self, node: TreeNode) -> None:
        assert node.hash not in self._nodes
        self._nodes[node.hash] = node
        self._link(node)

    def fill(self, node: TreeNode, batch: CompleteBatch) -> None:
        """Stores the contents of a block whose node had only a hash until now."""
        assert node.parent is None
        node.number, node.weight, node.parent, node.batch = batch.number, batch.weight, batch.parent, batch
        self._link(node)

    def remove(self, node: TreeNode) -> None:
        """Removes a node. Its children stay in the tree, in case the block arrives again."""
        del self._nodes[node.hash]
        if node.parent is not None:
            siblings = self._children[node.parent]
            del siblings[node.hash]
            if not siblings:
                del self._children[node.parent]

    def children(self, hash_: bytes) -> Iterable[TreeNode]:
        """Returns the children of this hash in the order of arrival. The block itself can be missing."""
        found = self._children.get(hash_)
        return tuple(found.values()) if found else ()

    def subtree(self, root: TreeNode) -> list[TreeNode]:
        """Returns `root` and all its descendants, each parent before its children."""
        found = [root]
        # The list grows while it is read, so parents come before their children.
        for node in found:
            found.extend(self.children(node.hash))
        return found

    def best_path(self, root: TreeNode) -> list[TreeNode]:
        """Returns the path from `root` through its heaviest descendant to a leaf. Of equally heavy descendants, the
        first to arrive wins."""
        if root.hash not in self._children:
            return [root]
        # Children come before their parents here, so each node needs one look at its children, however deep the tree
        # is.
        heaviest: dict[bytes, int] = {}
        choice: dict[bytes, TreeNode] = {}
        for node in reversed(self.subtree(root)):
            best: TreeNode | None = None
            for child in self.children(node.hash):
                if best is None or heaviest[child.hash] > heaviest[best.hash]:
                    best = child
            heaviest[node.hash] = node.weight
            if best is not None:
                choice[node.hash] = best
                heaviest[node.hash] = max(node.weight, heaviest[best.hash])
        path = [root]
        while (following := choice.get(path[-1].hash)) is not None:
            path.append(following)
        return path

    def check(self) -> None:
        for node in self._nodes.values():
            assert node.parent is None or self._children[node.parent][node.hash] is node
        for parent, children in self._children.items():
            assert children
            assert all(self._nodes[hash_] is node and node.parent == parent for hash_, node in children.items())

    def __iter__(self) -> Iterator[TreeNode]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def _link(self, node: TreeNode) -> None:
        if node.parent is not None:
            self._children.setdefault(node.parent, {})[node.hash] = node


class HeldChain:
    """The newest part of the chain: at most `removable_max` + 1 nodes, from the lowest to the head. The lowest node can
    be the common ancestor of a reorg, of which only the hash is known. Invariant: the parent of each node is the node
    before it. `_heights` grows by 1 from each node to the next."""

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
        """The number of the lowest block, if it is final and its number is known; else None."""
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

    def others(self, nodes: Iterable[TreeNode]) -> list[TreeNode]:
        """Returns the given nodes that are not on the chain."""
        return [node for node in nodes if node.hash not in self._heights]

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
