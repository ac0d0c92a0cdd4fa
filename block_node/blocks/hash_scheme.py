"""Hash schemes: rules for computing the root hash of a block from its items.

Networks have changed the scheme, and the header of a block does not name it. So a block has several possible root
hashes, called candidates: one for each scheme. A known root hash, a proof or the footer of the next block shows which
one is right. The leaf hashes are shared, so each further candidate costs only a few hashes. To add a scheme, add a
value to `SCHEMES`, and test vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha384
from typing import Final, Protocol

import msgspec


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
