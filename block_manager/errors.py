"""The errors of the block manager. Each says whose fault it was: that of the caller or that of a store."""

from __future__ import annotations


class BlockManagerError(Exception):
    """BlockManagerError: the base of every error here. Unless the error says otherwise, nothing was changed."""


class MissingInput(BlockManagerError):
    """`put` was given no block."""

    def __init__(self) -> None:
        super().__init__("put needs at least one block")


class MissingPredecessor(BlockManagerError):
    """The parent of the first block of a branch is not here: put the parent first."""

    def __init__(self, block_id: str, previous_id: str) -> None:
        super().__init__(f"the parent {previous_id} of block {block_id} is not here; put it first")
        self.block_id = block_id
        self.previous_id = previous_id


class MissingPredecessorInBranch(BlockManagerError):
    """A block of a branch does not follow the block before it. expected_id: that block."""

    def __init__(self, block_id: str, previous_id: str, expected_id: str) -> None:
        super().__init__(f"block {block_id} names {previous_id} as its parent, but follows {expected_id}")
        self.block_id = block_id
        self.previous_id = previous_id
        self.expected_id = expected_id


class NumberNotIncreasing(BlockManagerError):
    """A block's number is not larger than its parent's."""

    def __init__(self, block_id: str, number: int, previous_number: int) -> None:
        super().__init__(f"block {block_id} has number {number}, its parent has {previous_number}")
        self.block_id = block_id
        self.number = number
        self.previous_number = previous_number


class BlockConflict(BlockManagerError):
    """Two different blocks with one id, or a block with the null id."""

    def __init__(self, block_id: str, what: str) -> None:
        super().__init__(f"block {block_id} cannot be taken: {what}")
        self.block_id = block_id


class UnknownBlock(BlockManagerError):
    """No block here has this id: it was never put, or it was dropped."""

    def __init__(self, block_id: str) -> None:
        super().__init__(f"block {block_id} is not here")
        self.block_id = block_id


class ReferenceBelowZero(BlockManagerError):
    """More `unref_block` than `ref_block` for one block: a mistake in the program that calls."""

    def __init__(self, block_id: str) -> None:
        super().__init__(f"block {block_id} has no reference left to release; it was released too often")
        self.block_id = block_id


class UnknownStore(BlockManagerError):
    """No store was added under this name."""

    def __init__(self, store_name: str) -> None:
        super().__init__(f"there is no store {store_name!r}; add it first")
        self.store_name = store_name


class StoreExists(BlockManagerError):
    """A store was added under this name before."""

    def __init__(self, store_name: str) -> None:
        super().__init__(f"there is a store {store_name!r} already; choose another name")
        self.store_name = store_name


class IntegrityBroken(BlockManagerError):
    """An invariant does not hold: a mistake of this package, or a store that is not what it promised to be."""


class BlockStoreError(BlockManagerError):
    """A block store failed. As far as it knows, it changed nothing."""
