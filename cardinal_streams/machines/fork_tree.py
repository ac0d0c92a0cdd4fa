"""A tree of blocks, by hash and by parent, in which the heaviest path through forks can be found. The tree makes no
decisions.

A parent may be missing: the children of a block that has not arrived are kept under its hash, and wait.

Why this is not the block manager's tree: the block manager refuses a block whose parent is missing, which is the usual
case here. It keeps a block as long as somebody holds a reference to it; here the depth below the head decides. It knows
neither weights, nor an ancestor with nothing but a hash, such as the block behind which a consumer starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from cardinal_streams.payload import CompleteBatch


class Node:
    """A block in the tree. A node without `batch` is known by its hash only; a node without `number` is known because a
    child names it as its parent.

    `is_applied`: whether the application has this block, from this consumer or from an earlier one. It matters while
    the block is on the chain.
    """

    __slots__ = ("batch", "hash", "is_applied", "number", "parent", "weight")

    def __init__(
        self, hash_: bytes, number: int | None, parent: bytes | None, weight: int, batch: CompleteBatch | None
    ) -> None:
        self.hash = hash_
        self.number = number
        self.parent = parent
        self.weight = weight
        self.batch = batch
        self.is_applied = False

    @classmethod
    def of(cls, batch: CompleteBatch) -> Node:
        return cls(batch.hash, batch.number, batch.parent, batch.weight, batch)

    @classmethod
    def known_by_hash(cls, hash_: bytes, number: int | None = None, weight: int = 0) -> Node:
        return cls(hash_, number, None, weight, None)


class ForkTree:
    """The nodes, and the children of each hash in the order of their arrival.

    Invariant: a node with a parent is among the children of its parent's hash, and children are nodes.
    """

    __slots__ = ("_children", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._children: dict[bytes, dict[bytes, Node]] = {}

    def find(self, hash_: bytes) -> Node | None:
        return self._nodes.get(hash_)

    def add(self, node: Node) -> None:
        assert node.hash not in self._nodes
        self._nodes[node.hash] = node
        self._link(node)

    def fill(self, node: Node, batch: CompleteBatch) -> None:
        """Gives a node that was known by its hash only its block."""
        assert node.parent is None
        node.number, node.weight, node.parent, node.batch = batch.number, batch.weight, batch.parent, batch
        self._link(node)

    def remove(self, node: Node) -> None:
        """Removes a node. Its children stay, and wait for it."""
        del self._nodes[node.hash]
        if node.parent is not None:
            siblings = self._children[node.parent]
            del siblings[node.hash]
            if not siblings:
                del self._children[node.parent]

    def children(self, hash_: bytes) -> Iterable[Node]:
        """The children of this hash that have arrived, oldest first. The block itself may be missing."""
        found = self._children.get(hash_)
        return tuple(found.values()) if found else ()

    def subtree(self, root: Node) -> list[Node]:
        """The root and all its descendants, parents before children."""
        found = [root]
        for node in found:
            found.extend(self.children(node.hash))
        return found

    def best_path(self, root: Node) -> list[Node]:
        """The path from the root to the leaf with the heaviest block. Among equal weights the block that arrived first
        counts."""
        if root.hash not in self._children:
            return [root]
        heaviest: dict[bytes, int] = {}
        choice: dict[bytes, Node] = {}
        for node in reversed(self.subtree(root)):
            best: Node | None = None
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
        """Asserts that the invariant holds."""
        for node in self._nodes.values():
            assert node.parent is None or self._children[node.parent][node.hash] is node
        for parent, children in self._children.items():
            assert children
            assert all(self._nodes[hash_] is node and node.parent == parent for hash_, node in children.items())

    def __len__(self) -> int:
        return len(self._nodes)

    def _link(self, node: Node) -> None:
        if node.parent is not None:
            self._children.setdefault(node.parent, {})[node.hash] = node
