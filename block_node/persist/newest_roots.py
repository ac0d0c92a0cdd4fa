"""Computes the possible root hashes of the newest stored block from its items. They are normally stored with the chain,
but missing after a rebuild of the index, and in a database of an older version."""

from __future__ import annotations

from collections.abc import Callable

from block_node.blocks.block_reader import BlockReader
from block_node.blocks.errors import Level, VerificationFailed
from block_node.blocks.hash_scheme import RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.item_splitting import ItemBatch
from block_node.persist.store import ChainStore
from block_node.persist.stored_items import StoredItems
from block_node.protocol import Piece

RootsDone = Callable[[tuple[RootCandidate, ...], str], None]
"""The callback of `find_roots`: the possible root hashes and an empty text, or an empty tuple and the reason."""


def find_roots(store: ChainStore, number: int, settings: VerifierSettings, on_done: RootsDone) -> None:
    levels = Level.STRUCTURE | settings.levels & Level.MERKLE
    reader = BlockReader(number, VerifierSettings(levels=levels, hash_schemes=settings.hash_schemes))

    def take(chunk: ItemBatch) -> bool:
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
