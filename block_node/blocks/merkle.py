"""The Merkle root of a block, SHA-384, as its items arrive. It does not know what may be in a block.

    leaf of an item    H(00 | item)                  item as it is serialized
    one child          H(01 | child)
    two children       H(02 | left | right)
    empty tree         H(00)

Leaves are folded pairwise as soon as a pair is there; at the end what is left over is folded from right to left with
the two-child rule. Nothing is padded.

    root        = two children: H(00 | timestamp), top
    top         = tree of 16 values, taken as they are:
                  previous root, root of all blocks, state root (empty tree when not given),
                  consensus headers, inputs, outputs, state changes, trace data, 8 extensions
    legacy top  = one child: tree of the first 8 of these       (HAPI 0.73 and before)
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha384
from typing import Final

from block_node.blocks.items import BlockFooter, ItemKind

LEAF: Final = b"\x00"
ONE_CHILD: Final = b"\x01"
TWO_CHILDREN: Final = b"\x02"

EMPTY_TREE: Final = sha384(b"\x00").digest()

LEGACY_HAPI_MAX: Final = (0, 73)
"""The last (major, minor) of the legacy layout; recordings of both sides of it link."""


class Layout(IntEnum):
    """How many leaves the top tree has."""

    LEGACY = 8
    CURRENT = 16


class Category(IntEnum):
    """The subtrees, by their place among the leaves of the top tree."""

    CONSENSUS_HEADERS = 3
    INPUTS = 4
    OUTPUTS = 5
    STATE_CHANGES = 6
    TRACE_DATA = 7


CATEGORY_OF: Final = {
    ItemKind.HEADER: Category.OUTPUTS,
    ItemKind.EVENT_HEADER: Category.CONSENSUS_HEADERS,
    ItemKind.ROUND_HEADER: Category.CONSENSUS_HEADERS,
    ItemKind.SIGNED_TRANSACTION: Category.INPUTS,
    ItemKind.TRANSACTION_RESULT: Category.OUTPUTS,
    ItemKind.TRANSACTION_OUTPUT: Category.OUTPUTS,
    ItemKind.STATE_CHANGES: Category.STATE_CHANGES,
    ItemKind.RECORD_FILE: Category.OUTPUTS,
    ItemKind.TRACE_DATA: Category.TRACE_DATA,
}


def layout_of(hapi_version: tuple[int, int, int]) -> Layout:
    """The layout that a block of that version has."""
    return Layout.LEGACY if hapi_version[:2] <= LEGACY_HAPI_MAX else Layout.CURRENT


def place_of(kind: int) -> int | None:
    """The leaf of the top tree below which items of that kind are hashed, None if items of it are not allowed.

    Kinds from 20 on are of later versions: their number modulo 20 says where they belong. 20, 39, 40, … are in no tree,
    which is -1 here, as are footers and proofs.
    """
    if kind < 20:
        if kind in (ItemKind.PROOF, ItemKind.FOOTER):
            return -1
        return CATEGORY_OF.get(ItemKind(kind)) if kind in CATEGORY_OF else None
    rest = kind % 20
    if rest in (0, 19):
        return -1
    return rest if 3 <= rest <= 15 else None


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf."""
    return sha384(LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node with two children."""
    return sha384(TWO_CHILDREN + left + right).digest()


def one_child_hash(child: bytes) -> bytes:
    """The hash of a node with one child."""
    return sha384(ONE_CHILD + child).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """The root of the tree over leaf values; the empty tree's where there are none."""
    tree = StreamingTree()
    tree.extend(list(hashes))
    return tree.root()


class StreamingTree:
    """A tree that leaf values are appended to. Keeps one hash per level, 48 bytes each.

    Invariant: `_waiting[level]` is the root of a complete subtree of 2**level leaves that has no right neighbour yet.
    """

    def __init__(self) -> None:
        self._waiting: list[bytes | None] = []
        self.leaf_count = 0

    def extend(self, hashes: list[bytes]) -> None:
        """Append leaf values, in order."""
        self.leaf_count += len(hashes)
        hash_, level = sha384, 0
        while hashes:
            if level == len(self._waiting):
                self._waiting.append(None)
            before = self._waiting[level]
            if before is not None:
                hashes = [before, *hashes]
            self._waiting[level] = hashes[-1] if len(hashes) % 2 else None
            pairs = iter(hashes)
            hashes = [hash_(b"\x02" + left + right).digest() for left, right in zip(pairs, pairs, strict=False)]
            level += 1

    def root(self) -> bytes:
        """The root over all leaves so far; more may follow."""
        waiting = [each for each in self._waiting if each is not None]
        if not waiting:
            return EMPTY_TREE
        root = waiting[0]
        for left in waiting[1:]:
            root = node_hash(left, root)
        return root

    def peaks(self) -> tuple[bytes | None, ...]:
        """What the tree keeps, the smallest level first: enough to go on from."""
        return tuple(self._waiting)

    @classmethod
    def from_peaks(cls, peaks: Sequence[bytes | None]) -> StreamingTree:
        """The tree that `peaks` came from."""
        tree = cls()
        tree._waiting = list(peaks)
        tree.leaf_count = sum(1 << level for level, each in enumerate(peaks) if each is not None)
        return tree


class BlockTree:
    """The subtrees of one block."""

    def __init__(self) -> None:
        self._subtrees: dict[int, StreamingTree] = {}

    def extend(self, place: int, leaves: list[bytes]) -> None:
        """Append leaf hashes below one leaf of the top tree (`Category`, or 8 to 15 for an extension)."""
        tree = self._subtrees.get(place)
        if tree is None:
            tree = self._subtrees[place] = StreamingTree()
        tree.extend(leaves)

    def root(self, timestamp: bytes, footer: BlockFooter, layout: Layout) -> bytes:
        """The root of the block. `timestamp` is serialized."""
        top = [footer.previous_root, footer.all_blocks_root, footer.state_root or EMPTY_TREE]
        for place in range(3, layout):
            tree = self._subtrees.get(place)
            top.append(tree.root() if tree else EMPTY_TREE)
        top_root = fold(top)
        if layout is Layout.LEGACY:
            top_root = one_child_hash(top_root)
        return node_hash(leaf_hash(timestamp), top_root)
