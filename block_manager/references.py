"""The reference counts of one block. They know neither the block nor where it is."""

from __future__ import annotations

import msgspec


class References(msgspec.Struct):
    """References: the reasons why a block may not be dropped (RFC block-manager, "Ensuring Integrity").

    external: references from outside: every `ref_block` that was not undone, and every owned reference.
    owned: the part of `external` that iterators, contexts and persists hold. Only they can release it.
    dependents: children of this block that are in memory. Children in the same store as the block are not counted,
    since the store keeps both.
    """

    external: int = 0
    owned: int = 0
    dependents: int = 0

    @property
    def empty(self) -> bool:
        return not self.external and not self.dependents


class ReferenceCount(msgspec.Struct, frozen=True):
    """ReferenceCount: the one count of the RFC in its two parts.

    external: as in `References`.
    internal: the children of the block that are in memory, and 1 more if a store holds the block and a child of
    it (the implicit count of the RFC).
    """

    external: int
    internal: int

    @property
    def total(self) -> int:
        return self.external + self.internal
