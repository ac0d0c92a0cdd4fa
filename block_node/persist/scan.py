"""The scan: reads all stored blocks again and again, slowly, so that damage is found before a reader needs the
block."""

from __future__ import annotations

from contextlib import suppress

from block_node.persist.errors import BlockNumberUnknown
from block_node.persist.operations import PLACES_PER_READ, ReadBlocks
from block_node.persist.store import ChainStore
from ockam.actors.worker import Worker
from stream_storage.errors import DatabaseCorrupt, StorageClosed

READ_BYTES = 256 * 1024
"""Small, so that readers wait for a read of the scan only briefly."""
PAUSE_S = 5.0
"""The pause after each round through all blocks, and after a read that failed for another reason than its block."""


class BlockScan(Worker):
    """It reads at most `bytes_per_s` bytes in a second."""

    def __init__(self, store: ChainStore, bytes_per_s: int) -> None:
        self._store = store
        self._bytes_per_s = bytes_per_s
        self._number = self._part = 0

    def started(self) -> None:
        self._store.when_open(self.context.guard(self._read))

    def _read(self) -> None:
        number = self._store.available.next_from(self._number)
        if number is None:
            self._number = self._part = 0
            self.context.call_later(PAUSE_S, self._read)
            return
        if number != self._number:
            self._number, self._part = number, 0
        # If the node is stopping, the scan ends.
        with suppress(StorageClosed):
            self._store.read(number, self._part, READ_BYTES, self.context.guard(self._has_read), blocks=PLACES_PER_READ)

    def _has_read(self, operation: ReadBlocks) -> None:
        """Continues after the blocks that were read. A block that cannot be read is left out until the next round."""
        size_bytes = sum(len(part) for found in operation.found for part in found.parts)
        last = operation.found[-1] if operation.error is None else None
        self._number, self._part = operation.number + 1, 0
        if last is not None:
            is_whole = last.is_last or not last.parts
            self._number, self._part = (last.place.number + 1, 0) if is_whole else (last.place.number, last.next_part)
        is_of_block = operation.error is None or isinstance(operation.error, DatabaseCorrupt | BlockNumberUnknown)
        self.context.call_later(max(size_bytes, 1) / self._bytes_per_s if is_of_block else PAUSE_S, self._read)
