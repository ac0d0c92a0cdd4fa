"""The errors of the block manager. The type of an error shows whether the caller or a store has failed."""

from __future__ import annotations


class BlockManagerError(Exception):
    """BlockManagerError: the base class of all errors of this package. Unless the docstring of an error says otherwise,
    the failed call has changed nothing."""


class MissingInput(BlockManagerError):
    """The error of a `put` without blocks."""

    def __init__(self) -> None:
        super().__init__("put needs at least one block")


class MissingPredecessor(BlockManagerError):
    """The error of a `put` whose first block has a parent that the block manager does not have. Put the parent
    first."""

    def __init__(self, block_id: str, previous_id: str) -> None:
        super().__init__(f"the parent {previous_id} of block {block_id} is not here; put it first")
        self.block_id = block_id
        self.previous_id = previous_id


class MissingPredecessorInBranch(BlockManagerError):
    """The error of a branch in which the parent of a block is not the block before it.

    expected_id: the id of the block before it.
    """

    def __init__(self, block_id: str, previous_id: str, expected_id: str) -> None:
        super().__init__(f"block {block_id} names {previous_id} as its parent, but follows {expected_id}")
        self.block_id = block_id
        self.previous_id = previous_id
        self.expected_id = expected_id


class NumberNotIncreasing(BlockManagerError):
    """The error of a block whose number is not larger than the number of its parent."""

    def __init__(self, block_id: str, number: int, previous_number: int) -> None:
        super().__init__(f"block {block_id} has number {number}, its parent has {previous_number}")
        self.block_id = block_id
        self.number = number
        self.previous_number = previous_number


class BlockConflict(BlockManagerError):
    """The error of two different blocks with the same id, or of a block with the null id."""

    def __init__(self, block_id: str, what: str) -> None:
        super().__init__(f"block {block_id} cannot be taken: {what}")
        self.block_id = block_id


class UnknownBlock(BlockManagerError):
    """The error of using a block id that the block manager does not have: the block was never put, or was dropped."""

    def __init__(self, block_id: str) -> None:
        super().__init__(f"block {block_id} is not here")
        self.block_id = block_id


class ReferenceBelowZero(BlockManagerError):
    """The error of more `unref_block` calls than `ref_block` calls for one block. The calling program has a mistake."""

    def __init__(self, block_id: str) -> None:
        super().__init__(f"block {block_id} has no reference left to release; it was released too often")
        self.block_id = block_id


class UnknownStore(BlockManagerError):
    """The error of using a store name under which no store was added."""

    def __init__(self, store_name: str) -> None:
        super().__init__(f"there is no store {store_name!r}; add it first")
        self.store_name = store_name


class StoreExists(BlockManagerError):
    """The error of adding a store under a name that another store has already."""

    def __init__(self, store_name: str) -> None:
        super().__init__(f"there is a store {store_name!r} already; choose another name")
        self.store_name = store_name


class IntegrityBroken(BlockManagerError):
    """The error of an invariant that does not hold: this package has a mistake, or a store does not keep its
    contract."""


class BlockStoreError(BlockManagerError):
    """The error of a block store that failed. As far as the store knows, it has changed nothing."""
