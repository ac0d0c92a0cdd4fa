"""Reads the root of the block below a stored block from the stored block's footer. It checks nothing."""

from __future__ import annotations

from collections.abc import Callable

from block_node.blocks.items import ItemKind, item_kind, read_footer
from block_node.item_splitting import ItemBatch
from block_node.persist.store import BlockStore
from block_node.persist.stored_items import Guard, StoredItems
from block_node.protocol import Piece

AnchorDone = Callable[[bytes | None, str], None]
"""The callback of `find_previous_root`: the root, or None and the reason."""


def find_previous_root(store: BlockStore, number: int, on_done: AnchorDone, guard: Guard) -> None:
    """Reads block `number` part by part up to its footer, and passes on the root that the footer names. guard: wraps
    the callbacks that the store calls."""
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
