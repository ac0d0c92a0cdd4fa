"""Hash schemes: how the root of a block is computed from its items. A scheme is a value, since networks change the
scheme and no header names it.

Wrapped record blocks have the HAPI version of their record file, and the hash scheme of the tool that wrapped them. So
the roots of a block by all schemes are its candidates; a known root, a proof or the next block's footer decides between
them. The candidates share the hashes of all leaves: each further candidate costs only a handful of hashes per block.

To add a scheme, add a value to `SCHEMES` and test vectors for that scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha384
from typing import Final, Protocol

import msgspec


class Hash(Protocol):
    """The interface of a hash object: that of the objects of `hashlib`."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class HashRules(msgspec.Struct, frozen=True):
    """The rules by which a leaf, a node and the empty tree are hashed.

    algorithm: the number in a header's `hash_algorithm`. new: the constructor of the hash, like those of `hashlib`.

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
        """The size of a hash in bytes."""
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
    """A way to compute the root of a block.

    name: the name of the scheme. It is stored beside the chain, so it must never change. rules: the hashes of leaves
    and nodes. positions: the number of values in the top tree, see `block_node.blocks.merkle`. one_child_above: whether
    a node with one child is between the top tree and the root.
    """

    name: str
    rules: HashRules
    positions: int = 16
    one_child_above: bool = False


class RootCandidate(msgspec.Struct, frozen=True):
    """A possible root of a block: its root by one hash scheme."""

    scheme: str
    root: bytes


SHA384: Final = HashRules(0, sha384)
CURRENT: Final = HashScheme("sha384-16", SHA384)
LEGACY: Final = HashScheme("sha384-8", SHA384, positions=8, one_child_above=True)
"""The scheme of blocks that were hashed before August 2026, whichever HAPI version their headers have."""
SCHEMES: Final = (CURRENT, LEGACY)
"""All known schemes. The first scheme is tried first if nothing is known about a block."""


def in_order(candidates: tuple[RootCandidate, ...], scheme: str) -> tuple[RootCandidate, ...]:
    """Returns the candidates with the candidate of `scheme` moved to the front."""
    if not candidates or candidates[0].scheme == scheme:
        return candidates
    return tuple(sorted(candidates, key=lambda each: each.scheme != scheme))


def names_of(candidates: tuple[RootCandidate, ...]) -> str:
    """Formats the candidates for an error message: every root in full with the name of its scheme."""
    return " or ".join(f"{each.root.hex()} ({each.scheme})" for each in candidates) or "nothing"
