"""The errors of blocks, block files and address books. They decide nothing: the caller chooses how to answer.

Each error says whose fault it was. `VerificationFailed` and `BlockFormatError` are the fault of the publisher, or of
the peer from which a block was fetched. `BlockFileError` and `AddressBookError` are the fault of a file.
`SettingsError` is the fault of the operator.
"""

from __future__ import annotations

from enum import Enum, IntFlag


class Level(IntFlag):
    """A level of verification. Each level is switched on separately; `STRUCTURE` is always on."""

    STRUCTURE = 1
    """L0: the mandatory items and fields are present, in order, and within the limits."""

    MERKLE = 2
    """L1: the possible roots of the block are computed. If the operator configured a known root for the block, one of
    them must equal it."""

    CHAIN = 4
    """L2: the footer names the root of the block before, and the root over all blocks before."""

    RECORD_PROOF = 8
    """L3: the RSA signatures over the record file are checked against an address book."""

    STATE_PROOF = 16
    """L4: the state proof starts at this block's root, and resolves to the root of a later block."""

    TSS = 32
    """L5: an external verifier checks the threshold signature."""


class FailureKind(Enum):
    """The reason why a block was refused. The first eleven kinds are those of the real block node; the others are our
    own, for reasons that it does not distinguish."""

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
    """The base class of every error of this package."""


class BlockFormatError(BlockError):
    """Raised for bytes that are no block, item or protocol message. `offset` counts from the start of the parsed
    bytes."""

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset}"


class VerificationFailed(BlockError):
    """Raised when one block fails its verification. `number` is the number with which the block was announced, and
    `level` the level that found the fault."""

    def __init__(self, kind: FailureKind, level: Level, number: int, reason: str) -> None:
        super().__init__(kind, level, number, reason)
        self.kind = kind
        self.level = level
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"block {self.number} failed ({self.kind.value}, {self.level.name}): {self.reason}"


class BlockFileError(BlockError):
    """Raised for a block file that cannot be read: it is cut short, damaged, of an unknown kind, or above the
    limits."""


class AddressBookError(BlockError):
    """Raised for an address book that cannot be used."""


class SettingsError(BlockError):
    """Raised for a configuration of the verifier that cannot work."""
