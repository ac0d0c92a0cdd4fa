"""Reads the items of one stored block in batches, with at most one read in memory. It checks no item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from block_node.blocks.errors import BlockError
from block_node.item_splitting import ItemBatch, ItemSplitter, NotABlock
from block_node.persist.operations import ReadBlocks
from block_node.persist.store import ChainStore
from stream_storage.errors import StorageClosed

READ_BYTES: Final = 1024 * 1024

HasRead = Callable[[ReadBlocks], None]
Guard = Callable[[HasRead], HasRead]


class StoredItems:
    """A reader of the items of one stored block.

    - take: called with each batch of items. If it returns False, the reader stops. A BlockError counts as damage.
    - on_done: called once at the end, with the reason of a failure or with an empty text.
    - guard: wraps the callback of the store, so that an exception fails the worker that reads, not the store.
    """

    def __init__(
        self,
        store: ChainStore,
        number: int,
        take: Callable[[ItemBatch], bool],
        on_done: Callable[[str], None],
        guard: Guard = lambda function: function,
    ) -> None:
        self._store = store
        self._number = number
        self._take = take
        self._on_done = on_done
        self._has_read = guard(self._read_part)
        self._splitter = ItemSplitter(READ_BYTES)
        self._part = 0

    def read(self) -> None:
        """Reads the next part of the block, and then all later parts."""
        try:
            self._store.read(self._number, self._part, READ_BYTES, self._has_read)
        except StorageClosed as error:
            self._on_done(str(error))

    def _read_part(self, operation: ReadBlocks) -> None:
        if operation.error is not None:
            self._on_done(str(operation.error))
            return
        found = operation.found[0]
        try:
            chunks = [chunk for data in found.parts for chunk in self._splitter.feed(data)]
            if found.is_last:
                chunks += self._splitter.finish()
            goes_on = all(self._take(chunk) for chunk in chunks)
        except (NotABlock, BlockError) as error:
            self._on_done(f"block {self._number} is damaged: {error}")
            return
        if found.is_last or not goes_on:
            self._on_done("")
        else:
            self._part = found.next_part
            self.read()
