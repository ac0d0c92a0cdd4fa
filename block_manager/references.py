"""The reference counts of one block. This module knows neither the block nor the place where it is kept."""

from __future__ import annotations

import msgspec


class References(msgspec.Struct):
    """References: the reference counts of one block. A block with references may not be dropped (RFC block-manager,
    "Ensuring Integrity").

    external: the number of references from outside the manager: `ref_block` calls without a matching `unref_block`, and
    owned references.
    owned: the number of references in `external` that iterators, contexts and persists hold. Only their owner can
    release them.
    dependents: the number of children of this block that are in memory. Children in the same store as the block are not
    counted, since the store keeps both.
    """

    external: int = 0
    owned: int = 0
    dependents: int = 0

    @property
    def empty(self) -> bool:
        return not self.external and not self.dependents


class ReferenceCount(msgspec.Struct, frozen=True):
    """ReferenceCount: the reference count that the RFC defines, split into two parts.

    external: the same number as in `References`. internal: the number of children of the block that are in memory, plus
    1 if a store has the block and a child of it (the implicit count of the RFC).
    """

    external: int
    internal: int

    @property
    def total(self) -> int:
        return self.external + self.internal
