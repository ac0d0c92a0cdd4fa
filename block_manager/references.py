"""The reference counts of one block."""

from __future__ import annotations

import msgspec


class References(msgspec.Struct):
    """References: the reference counts of one block. A block with references must not be dropped.

    Source: RFC block-manager, "Ensuring Integrity".

    external: the number of references from outside the manager. It includes the references in `owned`.
    owned: the number of references that iterators, context managers and `persist` hold. Only their owner can release
    them.
    dependents: the number of children that are in memory. A child in a store is not counted.
    """

    external: int = 0
    owned: int = 0
    dependents: int = 0

    @property
    def empty(self) -> bool:
        return not self.external and not self.dependents


class ReferenceCount(msgspec.Struct, frozen=True):
    """ReferenceCount: the reference count of the RFC for one block, split into two parts.

    external: the number of references that are not from children: from `ref_block`, `put`, `add_store`, iterators,
    context managers and `persist`.
    internal: the number of children that are in memory, plus 1 if a store has both the block and a child of the block.
    """

    external: int
    internal: int

    @property
    def total(self) -> int:
        return self.external + self.internal
