"""The errors of blocks, block files, address books and settings, and the verification levels.

The class of an error shows who caused it. `VerificationFailed` and `BlockFormatError`: the publisher or node that sent
the block. `BlockFileError` and `AddressBookError`: a file. `SettingsError`: the operator.
"""

from __future__ import annotations

from enum import Enum, IntFlag


class Level(IntFlag):
    """A level of verification. Each level can be switched on separately; `STRUCTURE` is always on."""

    STRUCTURE = 1
    """L0: the mandatory items and fields are present and in the right order, and no limit is exceeded."""

    MERKLE = 2
    """L1: the possible root hashes of the block are computed. A root hash that the settings name is among them."""

    CHAIN = 4
    """L2: the block has the next number. Its footer names the right root hashes of all earlier blocks."""

    RECORD_PROOF = 8
    """L3: the RSA signatures over the record file (the format that preceded blocks) are valid for an address book."""

    STATE_PROOF = 16
    """L4: the state proof, a list of Merkle paths, leads from the root hash of this block to that of a later block."""

    TSS = 32
    """L5: the threshold signature is valid. An external verifier checks it."""


class FailureKind(Enum):
    """The reason why a block was rejected. The first eleven kinds are those of the reference block node."""

    BAD_BLOCK_PROOF = "bad_block_proof"
    UNABLE_TO_PARSE = "unable_to_parse"
    MISSING_MANDATORY_ITEM = "missing_mandatory_item"
    MISSING_MANDATORY_FIELD = "missing_mandatory_field"
    MISSING_VERIFICATION_DATA = "missing_verification_data"
    UNRECOGNIZED_PROOF_TYPE = "unrecognized_proof_type"
    UNSUPPORTED_HAPI_VERSION = "unsupported_hapi_version"
    UNSUPPORTED_ITEM_TYPE = "unsupported_item_type"
    UNSUPPORTED_STREAM_FORMAT = "unsupported_stream_format"
    CANCELLED = "cancelled"
    UNKNOWN_ERROR = "unknown_error"

    BAD_STRUCTURE = "bad_structure"
    BAD_ROOT = "bad_root"
    BAD_CHAIN_LINK = "bad_chain_link"
    LIMIT_EXCEEDED = "limit_exceeded"


class BlockError(ValueError):
    """BlockError: the base class of all errors of this package."""


class BlockFormatError(BlockError):
    """BlockFormatError: the error of bytes that are not a valid block, item or protobuf message.

    what: the fault. offset: its position, in bytes from the start of the parsed bytes."""

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset}"


class VerificationFailed(BlockError):
    """VerificationFailed: the error of a block that failed its verification.

    level: the verification level that found the fault. number: the expected number of the block, or the number in its
    header; 0 if neither is known. reason: a text for the log."""

    def __init__(self, kind: FailureKind, level: Level, number: int, reason: str) -> None:
        super().__init__(kind, level, number, reason)
        self.kind = kind
        self.level = level
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"block {self.number} failed ({self.kind.value}, {self.level.name}): {self.reason}"


class BlockFileError(BlockError):
    """BlockFileError: the error of a block file that cannot be read or written."""


class AddressBookError(BlockError):
    """AddressBookError: the error of an address book or key file that is invalid or cannot be read."""


class SettingsError(BlockError):
    """SettingsError: the error of settings that are invalid or contradict each other."""
