"""The block manager of RFC block-manager: a tree of blocks with forks, reference counts, and stores for branches.

`docs/block-manager.md` explains how to use it, and answers the questions that the RFC leaves open.

`open_store` opens a store on disk. A program that opens the database itself imports `CommitStore` and a `Transactions`
from here first: this adds a table to the schema. Modules for databases are loaded only when one of these names is used.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from block_manager.commit_store import CommitStore, CommitStoreStatistics
    from block_manager.transactions import JoinedTransactions, RunnerTransactions, SessionTransactions, Transactions

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
    "CommitStore",
    "CommitStoreStatistics",
    "ForkChoice",
    "IntegrityBroken",
    "JoinedTransactions",
    "ManagerStatistics",
    "MemoryStore",
    "MissingInput",
    "MissingPredecessor",
    "MissingPredecessorInBranch",
    "NumberNotIncreasing",
    "ReferenceBelowZero",
    "ReferenceCount",
    "RunnerTransactions",
    "SessionTransactions",
    "StoreExists",
    "Transactions",
    "UnknownBlock",
    "UnknownStore",
    "open_store",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name.startswith("CommitStore"):
        return getattr(import_module("block_manager.commit_store"), name)
    if name.endswith("Transactions"):
        return getattr(import_module("block_manager.transactions"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
