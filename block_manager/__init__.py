"""The fork tree of RFC block-manager: blocks, reference counts, stores.

Networks and the meaning of blocks are not its matter. `block_manager.manager` answers what the RFC leaves open.
`block_manager.commit_store` is imported where it is needed, before its database is opened: it brings SQL and a table.
"""

from block_manager.block import NULL_BLOCK_ID, Block
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
from block_manager.holds import BlockContext, BlockIterator
from block_manager.manager import BlockManager, ManagerStatistics
from block_manager.memory_store import MemoryStore
from block_manager.references import ReferenceCount
from block_manager.store import BlockStore

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
]
