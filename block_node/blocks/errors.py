"""What can be wrong with a block, a block file or an address book. It decides nothing: what to answer is the caller's.

Whose fault: `VerificationFailed` and `BlockFormatError` are the publisher's (or the peer's that a block was fetched
from), `BlockFileError` and `AddressBookError` are the file's, `SettingsError` is the operator's.
"""

from __future__ import annotations

from enum import Enum, IntFlag


class Level(IntFlag):
    """What is checked of a block. Levels are switched on one by one; `STRUCTURE` is always on."""

    STRUCTURE = 1
    """L0: the mandatory items and fields are there, in order, within the limits."""

    MERKLE = 2
    """L1: the roots are computed; where the operator knows the root of that block, one of them must be this one."""

    CHAIN = 4
    """L2: the footer names the root of the block before, and the root of the tree over all roots before."""

    RECORD_PROOF = 8
    """L3: the RSA signatures over the record file, against an address book."""

    STATE_PROOF = 16
    """L4: the state proof starts at this block's root, and resolves to the root of a later block."""

    TSS = 32
    """L5: the threshold signature, by an external verifier."""


class FailureKind(Enum):
    """Why a block was refused. The first eleven are the words of the real block node; the rest is what it lacks."""

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
    """Base of every error of this package."""


class BlockFormatError(BlockError):
    """Bytes that are no block, item or message of the protocol. `offset` counts from the start of what was parsed."""

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} - at byte {self.offset}"


class VerificationFailed(BlockError):
    """One block failed. `number` is the number the block was announced with, `level` the level that saw it."""

    def __init__(self, kind: FailureKind, level: Level, number: int, reason: str) -> None:
        super().__init__(kind, level, number, reason)
        self.kind = kind
        self.level = level
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"block {self.number} failed ({self.kind.value}, {self.level.name}): {self.reason}"


class BlockFileError(BlockError):
    """A block file cannot be read: it is cut short, damaged, of an unknown kind, or over the limits."""


class AddressBookError(BlockError):
    """An address book cannot be used."""


class SettingsError(BlockError):
    """The verifier is configured in a way that cannot work."""
