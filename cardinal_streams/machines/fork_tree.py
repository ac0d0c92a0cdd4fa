"""A tree of blocks, by hash and by parent, that finds the heaviest path through forks.

Unlike the tree of `block_manager`, it has children of blocks that have not arrived, weights, and hashes without a
block, such as the start of a consumer, and it drops blocks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cardinal_streams.payload import CompleteBatch


class TreeNode(msgspec.Struct, eq=False):
    """A block in a `ChainTree`. Without its contents there is no batch, and no number if the block is known only as a
    parent. `is_applied`: for a block on the chain, whether the application has it, from this consumer or another."""

    hash: bytes
    number: int | None
    parent: bytes | None
    weight: int
    batch: CompleteBatch | None
    is_applied: bool = False

    @classmethod
    def of(cls, batch: CompleteBatch) -> TreeNode:
        return cls(batch.hash, batch.number, batch.parent, batch.weight, batch)

    @classmethod
    def known_by_hash(cls, hash_: bytes, number: int | None = None, weight: int = 0) -> TreeNode:
        return cls(hash_, number, None, weight, None)


class ChainTree:
    """A tree of blocks: a node for each hash, and the children of each hash in the order of their arrival. Invariant: a
    node is listed as a child of its parent's hash, and every listed child is a node of the tree."""

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
        """Returns the path from `root` through its heaviest descendant to a leaf. Of equals, the first to come wins."""
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

    def __len__(self) -> int:
        return len(self._nodes)

    def _link(self, node: TreeNode) -> None:
        if node.parent is not None:
            self._children.setdefault(node.parent, {})[node.hash] = node
