"""Reference counts of one block. They do not know which block, nor where it is."""

from __future__ import annotations

import msgspec


class References(msgspec.Struct):
    """Why a block may not be dropped (RFC block-manager, "Ensuring Integrity").

    external: holds from outside, `ref_block` less `unref_block`, and those that are owned.
    owned: of these, the holds of iterators, contexts and persists: nobody else can release them.
    dependents: blocks in memory whose parent this is. The dependents of a stored block that are stored with it
    are not counted: the store keeps both.
    """

    external: int = 0
    owned: int = 0
    dependents: int = 0

    @property
    def empty(self) -> bool:
        return not self.external and not self.dependents


class ReferenceCount(msgspec.Struct, frozen=True):
    """The two parts of the RFC's one count.

    external: as in `References`.
    internal: blocks in memory whose parent this is, and 1 more if a store holds the block and a child of it
    (the RFC's implicit count).
    """

    external: int
    internal: int

    @property
    def total(self) -> int:
        return self.external + self.internal
