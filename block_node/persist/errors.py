"""The errors of storing or finding a block."""

from __future__ import annotations

from stream_storage.errors import StorageError


class BlockNumberUnknown(StorageError):
    """Raised for a request that names a block which is not stored."""

    def __init__(self, number: int) -> None:
        super().__init__(f"block {number} is not stored here; ask for the ranges that are (`block_status`)")


class StoredBlockDiffers(StorageError):
    """Raised if a block with the same number and another root hash is already stored."""

    def __init__(self, number: int, stored: bytes, offered: bytes) -> None:
        super().__init__(
            f"block {number} is stored with root {stored.hex()[:16]}…, and one with root {offered.hex()[:16]}… was "
            "offered; find out which source is wrong"
        )


class PredecessorMissing(StorageError):
    """Raised for a block if an earlier block could not be stored."""

    def __init__(self, number: int, behind: int) -> None:
        super().__init__(f"block {number} is not stored, since block {behind} before it could not be; send both again")


class StagedPartMissing(StorageError):
    """Raised for a large block if one of its staged parts (written before the verification) is missing."""

    def __init__(self, number: int, part: int) -> None:
        super().__init__(f"part {part} of block {number} could not be kept; make room on the disk, then send it again")
