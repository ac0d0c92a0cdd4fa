"""The errors of the block manager. The class of an error shows whether the caller or a store failed."""

from __future__ import annotations


class BlockManagerError(Exception):
    """BlockManagerError: the base class of all errors of this package.

    A failed call has changed nothing, unless the docstring of the error class says otherwise.
    """


class MissingInput(BlockManagerError):
    """MissingInput: the error of a `put` call without blocks."""

    def __init__(self) -> None:
        super().__init__("put needs at least one block")


class MissingPredecessor(BlockManagerError):
    """MissingPredecessor: the error of a `put` call if the manager does not have the parent of the first block."""

    def __init__(self, block_id: str, previous_id: str) -> None:
        super().__init__(f"the parent {previous_id} of block {block_id} is not here; put it first")
        self.block_id = block_id
        self.previous_id = previous_id


class MissingPredecessorInBranch(BlockManagerError):
    """MissingPredecessorInBranch: the error of a list of blocks in which a block does not follow the one before it.

    previous_id: the id of the parent that the block names.
    expected_id: the id of the preceding block in the list, which should be the parent.
    """

    def __init__(self, block_id: str, previous_id: str, expected_id: str) -> None:
        super().__init__(f"block {block_id} names {previous_id} as its parent, but follows {expected_id}")
        self.block_id = block_id
        self.previous_id = previous_id
        self.expected_id = expected_id


class NumberNotIncreasing(BlockManagerError):
    """NumberNotIncreasing: the error of a block whose number is not larger than the number of its parent."""

    def __init__(self, block_id: str, number: int, previous_number: int) -> None:
        super().__init__(f"block {block_id} has number {number}, its parent has {previous_number}")
        self.block_id = block_id
        self.number = number
        self.previous_number = previous_number


class BlockConflict(BlockManagerError):
    """BlockConflict: the error of a block whose id cannot be accepted.

    Either a different block has the same id, or the branch contains the id twice, or the id is the null id. `add_store`
    also raises this error if a block is in memory and in the store, but its parent is only in memory.
    """

    def __init__(self, block_id: str, what: str) -> None:
        super().__init__(f"block {block_id} cannot be taken: {what}")
        self.block_id = block_id


class UnknownBlock(BlockManagerError):
    """UnknownBlock: the error of a call with the id of a block that the block manager or the store does not have.

    The block was never added, or it was removed.
    """

    def __init__(self, block_id: str) -> None:
        super().__init__(f"block {block_id} is not here")
        self.block_id = block_id


class ReferenceBelowZero(BlockManagerError):
    """ReferenceBelowZero: the error of an `unref_block` call that would release more references than were added.

    Only the references of `ref_block`, `put` and `add_store` count. The calling program has a bug.
    """

    def __init__(self, block_id: str) -> None:
        super().__init__(f"block {block_id} has no reference left to release; it was released too often")
        self.block_id = block_id


class UnknownStore(BlockManagerError):
    """UnknownStore: the error of a call with a store name that was not added."""

    def __init__(self, store_name: str) -> None:
        super().__init__(f"there is no store {store_name!r}; add it first")
        self.store_name = store_name


class StoreExists(BlockManagerError):
    """StoreExists: the error of adding a store under a name that is already in use."""

    def __init__(self, store_name: str) -> None:
        super().__init__(f"there is a store {store_name!r} already; choose another name")
        self.store_name = store_name


class IntegrityBroken(BlockManagerError):
    """IntegrityBroken: the error of stored blocks or reference counts that contradict each other.

    Either this package has a bug, or a store does not follow the rules of `BlockStore`.
    """


class BlockStoreError(BlockManagerError):
    """BlockStoreError: the error of a block store that failed, or that refused the blocks.

    The store has normally changed nothing. After a failed commit, the result of the commit can be unknown.
    """
