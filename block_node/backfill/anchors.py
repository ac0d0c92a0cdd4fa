"""Reads the footer of a stored block, which names the root hash of the preceding block. It verifies nothing."""

from __future__ import annotations

from collections.abc import Callable

from block_node.blocks.items import ItemKind, item_kind, read_footer
from block_node.item_splitting import ItemBatch
from block_node.persist.store import ChainStore
from block_node.persist.stored_items import Guard, StoredItems
from block_node.protocol import Piece

AnchorDone = Callable[[bytes | None, str], None]
"""The callback of `find_previous_root`: the root hash, or None and the reason why."""


def find_previous_root(store: ChainStore, number: int, on_done: AnchorDone, guard: Guard) -> None:
    """Reads the stored block `number` up to its footer, which names the root hash of the preceding block."""
    found: list[bytes] = []

    def take(chunk: ItemBatch) -> bool:
        for item in chunk.items if chunk.piece is Piece.WHOLE else ():
            if item_kind(item) == ItemKind.FOOTER:
                found.append(read_footer(item).previous_root)
                return False
        return True

    def done(reason: str) -> None:
        on_done(found[0] if found else None, reason or ("" if found else f"block {number} has no footer"))

    StoredItems(store, number, take, done, guard).read()
