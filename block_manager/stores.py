"""The stores of a block manager by name, and the blocks that are moving between memory and one of the stores.

A reader always finds a block while it moves. Blocks that move into the store stay in memory until the store has
confirmed them. Blocks that move out of the store stay in a `Transfer` object until they are in memory again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from block_manager.block import Block
from block_manager.errors import StoreExists, UnknownStore
from block_manager.store import BlockStore


class Transfer(msgspec.Struct, frozen=True):
    """Transfer: the blocks that one `persist` call moves into and out of one store.

    inserted: the blocks that are added to the store, oldest first.
    displaced: the blocks that are removed from the store, newest first.
    returning: the displaced blocks that no other store has. They return to memory.
    root_id: if the store loses all its blocks, the id of the oldest one, whose parent can be missing. Otherwise None.
    """

    store_name: str
    inserted: tuple[Block, ...]
    displaced: tuple[Block, ...]
    returning: tuple[Block, ...]
    root_id: str | None


class StoreSet:
    """StoreSet: the stores of a block manager by name, and the running transfer.

    The caller must have taken the lock of `KnownBlocks`.

    transfer: the blocks that are moving into and out of a store, or None.
    """

    def __init__(self) -> None:
        self._stores: dict[str, BlockStore] = {}
        self._displaced: dict[str, Block] = {}
        self.transfer: Transfer | None = None

    def check_absent(self, store_name: str) -> None:
        """Raises StoreExists if a store with this name was added."""
        if store_name in self._stores:
            raise StoreExists(store_name)

    def add(self, store_name: str, store: BlockStore) -> None:
        self._stores[store_name] = store

    def get(self, store_name: str) -> BlockStore:
        """Returns the store with this name. Raises UnknownStore."""
        try:
            return self._stores[store_name]
        except KeyError:
            raise UnknownStore(store_name) from None

    def names(self) -> list[str]:
        return list(self._stores)

    def find_many(self, block_ids: Iterable[str], *, besides: str | None = None) -> dict[str, Block]:
        """Returns the blocks with these ids from all stores, as a dict by id. Blocks that no store has are left out.

        Blocks that the running transfer removes from a store are also found.

        besides: the name of a store to skip. None means no store.
        """
        wanted = dict.fromkeys(block_ids)
        found: dict[str, Block] = {}
        for block_id in wanted.keys() & self._displaced.keys():
            found[block_id] = self._displaced[block_id]
        for store_name, store in self._stores.items():
            missing = [block_id for block_id in wanted if block_id not in found]
            if missing and store_name != besides:
                found.update((block.block_id, block) for block in store.get(missing))
        return found

    def begin(self, transfer: Transfer) -> None:
        assert self.transfer is None, "a second transfer began before the first was settled"
        self.transfer = transfer
        self._displaced = {block.block_id: block for block in transfer.displaced}

    def end(self) -> None:
        self.transfer = None
        self._displaced = {}
