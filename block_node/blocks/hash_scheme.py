"""How the root of a block is made of its items: a value, since networks change it and no header says which one it is.

Wrapped record blocks have the HAPI version of their record file, and whichever scheme the tool had that wrapped them.
So the roots of a block by all schemes are its candidates; a known root, a proof or the next block's footer says which
one it is. The candidates share the hashes of all leaves: each further one costs a handful of hashes a block.

A new scheme is a value in `SCHEMES`, and its vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha384
from typing import Final, Protocol

import msgspec


class Hash(Protocol):
    """As the objects of `hashlib`."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class HashRules(msgspec.Struct, frozen=True):
    """What is hashed for a leaf, for a node and for a tree without leaves.

    algorithm: the number in a header's `hash_algorithm`. new: the constructor of the hash, as those of `hashlib`.

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
        """Bytes of a hash."""
        return len(self.empty)

    @property
    def empty(self) -> bytes:
        """The root of a tree without leaves."""
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
    """positions: values of the top tree, see `block_node.blocks.merkle`. one_child_above: whether a node with one child
    is between the top tree and the root. name: kept beside the chain, so it never changes."""

    name: str
    rules: HashRules
    positions: int = 16
    one_child_above: bool = False


class RootCandidate(msgspec.Struct, frozen=True):
    """The root that a block has by one scheme."""

    scheme: str
    root: bytes


SHA384: Final = HashRules(0, sha384)
CURRENT: Final = HashScheme("sha384-16", SHA384)
LEGACY: Final = HashScheme("sha384-8", SHA384, positions=8, one_child_above=True)
"""Of blocks that were hashed before August 2026, whatever their version says."""
SCHEMES: Final = (CURRENT, LEGACY)
"""The first one is tried first where nothing else is known."""


def in_order(candidates: tuple[RootCandidate, ...], scheme: str) -> tuple[RootCandidate, ...]:
    """The same, the one of that scheme first."""
    if not candidates or candidates[0].scheme == scheme:
        return candidates
    return tuple(sorted(candidates, key=lambda each: each.scheme != scheme))


def names_of(candidates: tuple[RootCandidate, ...]) -> str:
    """For people: every root, whole, with its scheme."""
    return " or ".join(f"{each.root.hex()} ({each.scheme})" for each in candidates) or "nothing"
