"""Reads the items of one stored block in batches, and finds root hashes in them. It verifies no block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from block_node.blocks.block_reader import BlockReader
from block_node.blocks.errors import BlockError, Level, VerificationFailed
from block_node.blocks.items import ItemKind, item_kind, read_footer
from block_node.blocks.merkle import RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.item_splitting import ItemBatch, ItemSplitter
from block_node.persist.chain_log import ReadBlocks
from block_node.persist.store import ChainStore
from block_node.protocol import Piece
from stream_storage.errors import StorageClosed

READ_BYTES: Final = 1024 * 1024

HasRead = Callable[[ReadBlocks], None]
Guard = Callable[[HasRead], HasRead]
RootsDone = Callable[[tuple[RootCandidate, ...], str], None]
"""The callback of `find_roots`: the possible root hashes and an empty text, or an empty tuple and the reason."""
AnchorDone = Callable[[bytes | None, str], None]
"""The callback of `find_previous_root`: the root hash, or None and the reason why."""


def read_items(
    store: ChainStore,
    number: int,
    take: Callable[[ItemBatch], bool],
    on_done: Callable[[str], None],
    guard: Guard = lambda function: function,
) -> None:
    """Reads the items of one stored block.

    - take: called with each batch of items. If it returns False, the reading stops. A BlockError counts as damage.
    - on_done: called once at the end, with the reason of a failure or with an empty text.
    - guard: wraps the callback of the store, so that an exception fails the worker that reads, not the store.
    """
    splitter = ItemSplitter(READ_BYTES)

    def read(part: int) -> None:
        try:
            store.read(number, part, READ_BYTES, has_read)
        except StorageClosed as error:
            on_done(str(error))

    def read_part(operation: ReadBlocks) -> None:
        if operation.error is not None:
            on_done(str(operation.error))
            return
        found = operation.found[0]
        try:
            chunks = [chunk for data in found.parts for chunk in splitter.feed(data)]
            if found.is_last:
                chunks += splitter.finish()
            goes_on = all(take(chunk) for chunk in chunks)
        except BlockError as error:
            on_done(f"block {number} is damaged: {error}")
            return
        if found.is_last or not goes_on:
            on_done("")
        else:
            read(found.next_part)

    has_read = guard(read_part)
    read(0)


def find_roots(store: ChainStore, number: int, settings: VerifierSettings, on_done: RootsDone) -> None:
    """Computes the possible root hashes of the newest stored block, if the chain was not stored with them."""
    levels = Level.STRUCTURE | settings.levels & Level.MERKLE
    reader = BlockReader(number, VerifierSettings(levels=levels, hash_schemes=settings.hash_schemes))

    def take(chunk: ItemBatch) -> bool:
        reader.add(chunk.items, chunk.piece)
        return True

    def done(reason: str) -> None:
        try:
            roots = () if reason else reader.finish().roots
        except VerificationFailed as failure:
            roots, reason = (), str(failure)
        on_done(roots, reason)

    read_items(store, number, take, done)


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

    read_items(store, number, take, done, guard)
