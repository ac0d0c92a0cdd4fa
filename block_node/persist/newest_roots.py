"""Which roots the newest stored block may have, found out anew from its items where that was not kept beside the chain.

So it is after the index was rebuilt, and with a database of a version that knew one root of a block only.
"""

from __future__ import annotations

from collections.abc import Callable

from block_node.blocks.block_reader import BlockReader
from block_node.blocks.errors import Level, VerificationFailed
from block_node.blocks.hash_scheme import RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.item_splitting import Chunk
from block_node.persist.store import BlockStore
from block_node.persist.stored_items import StoredItems
from block_node.protocol import Piece

RootsDone = Callable[[tuple[RootCandidate, ...], str], None]
"""The roots, or none and the reason."""


def find_roots(store: BlockStore, number: int, settings: VerifierSettings, on_done: RootsDone) -> None:
    """Read and hash the block."""
    levels = Level.STRUCTURE | settings.levels & Level.MERKLE
    reader = BlockReader(number, VerifierSettings(levels=levels, hash_schemes=settings.hash_schemes))

    def take(chunk: Chunk) -> bool:
        if chunk.piece is Piece.WHOLE:
            reader.add(chunk.items)
        else:
            reader.add_part(chunk.items[0], last=chunk.piece is Piece.LAST)
        return True

    def done(reason: str) -> None:
        try:
            roots = () if reason else reader.finish().roots
        except VerificationFailed as failure:
            roots, reason = (), str(failure)
        on_done(roots, reason)

    StoredItems(store, number, take, done).read()
