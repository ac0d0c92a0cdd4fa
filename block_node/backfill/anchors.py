"""What the footer of a stored block names as the root of the block below it. It reads, and checks nothing."""

from __future__ import annotations

from collections.abc import Callable

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_footer
from block_node.item_splitting import ItemSplitter, NotABlock
from block_node.persistence_operations import ReadBlocks
from block_node.persistence_store import BlockStore
from block_node.protocol import Piece
from storage.errors import StorageClosed

READ_BYTES = 1024 * 1024
"""Read at once, and so held at most."""

AnchorDone = Callable[[bytes | None, str], None]
"""The root, or None and the reason."""


HasRead = Callable[[ReadBlocks], None]


def find_previous_root(
    store: BlockStore, number: int, on_done: AnchorDone, guard: Callable[[HasRead], HasRead]
) -> None:
    """Read the block, some parts at a time, until its footer has come. guard: what the store calls goes through it."""
    _FooterReader(store, number, on_done, guard).read()


class _FooterReader:
    def __init__(
        self, store: BlockStore, number: int, on_done: AnchorDone, guard: Callable[[HasRead], HasRead]
    ) -> None:
        self._has_read = guard(self._take)
        self._store = store
        self._number = number
        self._on_done = on_done
        self._splitter = ItemSplitter(READ_BYTES)
        self._part = 0

    def read(self) -> None:
        try:
            self._store.read(self._number, self._part, READ_BYTES, self._has_read)
        except StorageClosed as error:
            self._on_done(None, str(error))

    def _take(self, operation: ReadBlocks) -> None:
        if operation.error is not None:
            self._on_done(None, str(operation.error))
            return
        found = operation.found[0]
        try:
            chunks = [chunk for data in found.parts for chunk in self._splitter.feed(data)]
            if found.is_last:
                chunks += self._splitter.finish()
            for chunk in chunks:
                for item in chunk.items if chunk.piece is Piece.WHOLE else ():
                    if item_kind(item) == ItemKind.FOOTER:
                        self._on_done(read_footer(item).previous_root, "")
                        return
        except (NotABlock, BlockFormatError) as error:
            self._on_done(None, f"block {self._number} is damaged: {error}")
            return
        if found.is_last:
            self._on_done(None, f"block {self._number} has no footer")
        else:
            self._part = found.next_part
            self.read()
