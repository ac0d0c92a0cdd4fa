"""Blocks by hash and by parent: enough of a tree to find the heaviest way through forks. It decides nothing.

A parent need not be there: the children of a block that has not arrived hang on its hash and wait.

Why this is not the block manager's tree: that one has integrity, so it refuses a block whose parent is absent, which
is the usual case here; it keeps blocks by the references others hold, where here the depth below the head decides;
and it knows neither weights nor an ancestor of which only the hash is known, such as the block a consumer starts from.
"""

from __future__ import annotations

from collections.abc import Iterable

from cardinal_streams.payload import CompleteBatch


class Node:
    """A block in the tree. One without `batch` is known by hash only, one without `number` by a child's word.

    `is_applied`: while it is on the chain, the application has it, be it from us or from before.
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
    """Nodes, and the children of each hash in the order of arrival.

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
        """A node that was known by its hash turns out to be this block."""
        assert node.parent is None
        node.number, node.weight, node.parent, node.batch = batch.number, batch.weight, batch.parent, batch
        self._link(node)

    def remove(self, node: Node) -> None:
        """Its children stay, and wait for it."""
        del self._nodes[node.hash]
        if node.parent is not None:
            siblings = self._children[node.parent]
            del siblings[node.hash]
            if not siblings:
                del self._children[node.parent]

    def children(self, hash_: bytes) -> Iterable[Node]:
        """The children that are here, oldest first, whether or not the block itself is."""
        found = self._children.get(hash_)
        return tuple(found.values()) if found else ()

    def subtree(self, root: Node) -> list[Node]:
        """The root and everything below it, parents before children."""
        found = [root]
        for node in found:
            found.extend(self.children(node.hash))
        return found

    def best_path(self, root: Node) -> list[Node]:
        """From the root to a leaf, at each fork towards the heaviest block; among equals the first that came."""
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
        """Asserts the invariant."""
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
