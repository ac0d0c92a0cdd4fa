"""Computes the Merkle root hashes of a block from leaf hashes, by one or more hash schemes.

Networks have changed the scheme, and the header of a block does not name it. So a block has several possible root
hashes, called candidates: one for each scheme. A known root hash, a proof or the footer of the next block shows which
one is right. The leaf hashes are shared, so each further candidate costs only a few hashes. To add a scheme, add a
value to `SCHEMES`, and test vectors.

Two neighbouring hashes are combined as soon as both have arrived. At the end, the remaining hashes are combined from
right to left as nodes with two children. Nothing is padded.

    root        = two children: leaf of the timestamp, top
    top         = tree of the first `positions` of these values, used without hashing them again;
                  if `one_child_above` is True, a node whose only child is this tree
    values      = previous root, root of all blocks, state root (empty tree when not given),
                  consensus headers, inputs, outputs, state changes, trace data, 8 extensions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from hashlib import sha384
from typing import Final, Protocol

import msgspec

from block_node.blocks.items import BlockFooter, ItemKind


class Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class HashRules(msgspec.Struct, frozen=True):
    """The hash function (`new`, such as `hashlib.sha384`), its number in a header, and the prefixes:

    leaf of an item    H(leaf | item)                     item as it is serialized
    one child          H(one_child | child)
    two children       H(two_children | left | right)
    empty tree         H(leaf)
    """

    algorithm: int
    new: Callable[[bytes], Hash]
    leaf: bytes = b"\x00"
    one_child: bytes = b"\x01"
    two_children: bytes = b"\x02"

    @property
    def size(self) -> int:
        return len(self.empty)

    @property
    def empty(self) -> bytes:
        return _empty(self.new, self.leaf)

    def leaf_hash(self, data: bytes) -> bytes:
        return self.new(self.leaf + data).digest()

    def node_hash(self, left: bytes, right: bytes) -> bytes:
        return self.new(self.two_children + left + right).digest()

    def one_child_hash(self, child: bytes) -> bytes:
        return self.new(self.one_child + child).digest()


@cache
def _empty(new: Callable[[bytes], Hash], leaf: bytes) -> bytes:
    return new(leaf).digest()


class HashScheme(msgspec.Struct, frozen=True):
    """One way to compute the root hash of a block.

    name: stored with the chain, so it must never change.
    positions: the number of leaves of the top tree, which joins the subtrees of a block (`block_node.blocks.merkle`).
    one_child_above: whether the hash of the top tree is hashed once more, as a node with one child.
    """

    name: str
    rules: HashRules
    positions: int = 16
    one_child_above: bool = False


class RootCandidate(msgspec.Struct, frozen=True):
    scheme: str
    root: bytes


SHA384: Final = HashRules(0, sha384)
CURRENT: Final = HashScheme("sha384-16", SHA384)
LEGACY: Final = HashScheme("sha384-8", SHA384, positions=8, one_child_above=True)
"""The scheme of blocks that were hashed before August 2026. The version in a block's header does not show it."""
SCHEMES: Final = (CURRENT, LEGACY)
"""The first scheme is assumed if nothing is known about a block."""


def in_order(candidates: tuple[RootCandidate, ...], scheme: str) -> tuple[RootCandidate, ...]:
    if not candidates or candidates[0].scheme == scheme:
        return candidates
    return tuple(sorted(candidates, key=lambda each: each.scheme != scheme))


def names_of(candidates: tuple[RootCandidate, ...]) -> str:
    return " or ".join(f"{each.root.hex()} ({each.scheme})" for each in candidates) or "nothing"


EMPTY_TREE: Final = SHA384.empty


POSITIONS_MAX: Final = 16
"""The largest number of leaves of a top tree, the tree that joins the subtrees of a block."""


class Category(IntEnum):
    """The subtrees of a block, each with its position among the leaves of the top tree."""

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


def place_of(kind: int) -> int | None:
    """Returns the position of the subtree for items of a kind: -1 if no subtree has them, None if they are not
    allowed. Kinds from 20 on belong to later versions: there the number modulo 20 decides."""
    if kind < 20:
        if kind in (ItemKind.PROOF, ItemKind.FOOTER):
            return -1
        return CATEGORY_OF.get(ItemKind(kind)) if kind in CATEGORY_OF else None
    rest = kind % 20
    if rest in (0, 19):
        return -1
    return rest if 3 <= rest <= 15 else None


def fold(hashes: Sequence[bytes], rules: HashRules = SHA384) -> bytes:
    tree = StreamingTree(rules)
    tree.extend(list(hashes))
    return tree.root()


class StreamingTree:
    """A Merkle tree to which leaf hashes are appended. It keeps at most one hash per level.

    Invariant: `_waiting[level]` is the root hash of a subtree of 2**level leaves without a right neighbour yet, or
    None.
    """

    def __init__(self, rules: HashRules = SHA384) -> None:
        self._rules = rules
        self._waiting: list[bytes | None] = []
        self.leaf_count = 0

    def extend(self, hashes: list[bytes]) -> None:
        self.leaf_count += len(hashes)
        hash_, prefix, level = self._rules.new, self._rules.two_children, 0
        # One level after the other: pairs become nodes of the next level, and a single hash waits for its neighbour.
        while hashes:
            if level == len(self._waiting):
                self._waiting.append(None)
            before = self._waiting[level]
            if before is not None:
                hashes = [before, *hashes]
            self._waiting[level] = hashes[-1] if len(hashes) % 2 else None
            pairs = iter(hashes)
            hashes = [hash_(prefix + left + right).digest() for left, right in zip(pairs, pairs, strict=False)]
            level += 1

    def root(self) -> bytes:
        """Returns the root hash over all leaves so far. More leaves can be appended afterwards."""
        waiting = [each for each in self._waiting if each is not None]
        if not waiting:
            return self._rules.empty
        root = waiting[0]
        for left in waiting[1:]:
            root = self._rules.node_hash(left, root)
        return root

    def peaks(self) -> tuple[bytes | None, ...]:
        """Returns for each level, the lowest first, the hash that the tree keeps there, or None. See `from_peaks`."""
        return tuple(self._waiting)

    @classmethod
    def from_peaks(cls, peaks: Sequence[bytes | None], rules: HashRules = SHA384) -> StreamingTree:
        tree = cls(rules)
        tree._waiting = list(peaks)
        tree.leaf_count = sum(1 << level for level, each in enumerate(peaks) if each is not None)
        return tree


class BlockTree:
    """The subtrees of one block, shared by all schemes with the same hash functions."""

    def __init__(self, schemes: Sequence[HashScheme]) -> None:
        self._schemes = schemes
        self._subtrees: dict[HashRules, dict[int, StreamingTree]] = {scheme.rules: {} for scheme in schemes}

    def extend(self, place: int, leaves: list[bytes]) -> None:
        for rules, subtrees in self._subtrees.items():
            tree = subtrees.get(place)
            if tree is None:
                tree = subtrees[place] = StreamingTree(rules)
            tree.extend(leaves)

    def roots(self, timestamp: bytes, footer: BlockFooter) -> tuple[RootCandidate, ...]:
        """Returns the root hashes of the block, one for each scheme, in their order. `timestamp` is serialized."""
        values = {rules: _values(footer, rules.empty, trees) for rules, trees in self._subtrees.items()}
        return tuple(
            RootCandidate(scheme.name, _root(scheme, values[scheme.rules], timestamp)) for scheme in self._schemes
        )


def _values(footer: BlockFooter, empty: bytes, subtrees: dict[int, StreamingTree]) -> list[bytes]:
    values = [footer.previous_root, footer.all_blocks_root, footer.state_root or empty]
    return values + [subtrees[place].root() if place in subtrees else empty for place in range(3, POSITIONS_MAX)]


def _root(scheme: HashScheme, values: list[bytes], timestamp: bytes) -> bytes:
    rules = scheme.rules
    top = fold(values[: scheme.positions], rules)
    if scheme.one_child_above:
        top = rules.one_child_hash(top)
    return rules.node_hash(rules.leaf_hash(timestamp), top)
