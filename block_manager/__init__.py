"""The block manager of RFC block-manager: a tree of blocks with forks, reference counts, and stores for branches.

`docs/block-manager.md` explains how to use it, and answers the questions that the RFC leaves open.

`open_store` opens a store on disk. A program that opens the database itself imports `block_manager.commit_store` first,
which adds a table to the schema.
"""

from block_manager.errors import (
    BlockConflict,
    BlockManagerError,
    BlockStoreError,
    IntegrityBroken,
    MissingInput,
    MissingPredecessor,
    MissingPredecessorInBranch,
    NumberNotIncreasing,
    ReferenceBelowZero,
    StoreExists,
    UnknownBlock,
    UnknownStore,
)
from block_manager.fork_choice import Change, ForkChoice
from block_manager.known_blocks import BlockContext, BlockIterator
from block_manager.manager import BlockManager, ManagerStatistics
from block_manager.store import BlockStore, MemoryStore, open_store
from block_manager.tree import NULL_BLOCK_ID, Block, ReferenceCount

__all__ = [
    "NULL_BLOCK_ID",
    "Block",
    "BlockConflict",
    "BlockContext",
    "BlockIterator",
    "BlockManager",
    "BlockManagerError",
    "BlockStore",
    "BlockStoreError",
    "Change",
    "ForkChoice",
    "IntegrityBroken",
    "ManagerStatistics",
    "MemoryStore",
    "MissingInput",
    "MissingPredecessor",
    "MissingPredecessorInBranch",
    "NumberNotIncreasing",
    "ReferenceBelowZero",
    "ReferenceCount",
    "StoreExists",
    "UnknownBlock",
    "UnknownStore",
    "open_store",
]
