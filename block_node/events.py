"""The events of a block node: the items of blocks, and notifications that plugins send to each other.

The facility (`block_node.facility`) delivers the events to all plugins. A block is received in one or more attempts.
The events of an attempt are, in order: `BlockBegun`, any number of `ItemsReceived`, then `BlockEnded` or
`BlockDropped`. The events of two blocks are never mixed. A dropped block can begin again, with a new attempt number.

After `BlockEnded`, exactly one `VerificationNotification` with the same attempt number follows. If it reports success,
exactly one `PersistedNotification` follows, unless a `NodeFailure` comes first. A failure can be reported before
`BlockEnded`; then no more events of this attempt follow.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

from block_node.protocol import Piece

EVENT_OVERHEAD_BYTES = 128
ITEM_OVERHEAD_BYTES = 64
"""The memory that an item takes in addition to its content: a million empty items also occupy memory."""


class BlockOrigin(enum.Enum):
    """The source of a block.

    BACKFILL: from another node, because the block was missing here. HISTORY: it was already on disk."""

    PUBLISHER = "publisher"
    BACKFILL = "backfill"
    HISTORY = "history"


class BlockBegun(msgspec.Struct, frozen=True):
    """The node begins to receive a block. `attempt` rises with each `BlockBegun`, also of another block."""

    block_number: int
    attempt: int


class ItemsReceived(msgspec.Struct, frozen=True, gc=False):
    """Items of the current block have arrived. The first is its header, which is never split. Large items come in
    pieces in several events."""

    block_number: int
    attempt: int
    items: list[bytes]
    size_bytes: int
    piece: Piece = Piece.WHOLE


class BlockEnded(msgspec.Struct, frozen=True):
    block_number: int
    attempt: int


class BlockDropped(msgspec.Struct, frozen=True):
    """The rest of the block will not arrive: plugins discard its items. reason: for the log."""

    block_number: int
    attempt: int
    reason: str


ItemEvent: TypeAlias = BlockBegun | ItemsReceived | BlockEnded | BlockDropped


class VerificationNotification(msgspec.Struct, frozen=True):
    """The result of verifying a block. For blocks that continue the chain, the successes come in the order of numbers.

    attempt: the attempt in which the block was received. 0 for a block that came whole (`BackfilledBlockNotification`).
    root: empty if unknown. other_roots: the other possible root hashes; the next block shows which one is right.
    failure: a `FailureKind` value; reason: the same in words.
    informational: nobody is to blame, for example because the block was already verified from another source.
    verifier_state: the chain after this block, to be stored with it. Empty if the block does not continue the chain.
    previous_root: the root hash of the preceding block, by the footer of this one.
    corrected_root: equals previous_root if the preceding block was accepted with a wrong root hash; otherwise empty.
    """

    block_number: int
    attempt: int
    source: BlockOrigin
    success: bool
    root: bytes = b""
    failure: str | None = None
    informational: bool = False
    reason: str = ""
    verifier_state: bytes = b""
    previous_root: bytes = b""
    other_roots: tuple[bytes, ...] = ()
    corrected_root: bytes = b""


class PersistedNotification(msgspec.Struct, frozen=True):
    """A verified block was synced to disk, or could not be stored. Blocks are stored in the order in which they were
    verified, and none above a failed one, so that no gap remains. A block that turns out to be on disk after a crash or
    a commit in doubt is reported once more, as HISTORY."""

    block_number: int
    succeeded: bool
    source: BlockOrigin
    reason: str = ""
    root: bytes = b""


class BackfilledBlockNotification(msgspec.Struct, frozen=True, gc=False):
    """A whole block must be verified: from another node, or sent again by a publisher (`Mending`). roots: the
    block must have one of these; empty if unknown."""

    block_number: int
    items: list[bytes]
    size_bytes: int
    source: BlockOrigin = BlockOrigin.BACKFILL
    roots: tuple[bytes, ...] = ()


class NewestBlockKnownToNetwork(msgspec.Struct, frozen=True):
    """A publisher offers a block, but the node lacks earlier ones, and must fetch them up to it."""

    block_number: int


class BlockDamaged(msgspec.Struct, frozen=True):
    block_number: int


class CatchUpStalled(msgspec.Struct, frozen=True):
    """The node makes no progress towards the block that publishers offer."""

    target_block: int
    last_block: int | None


class PublisherStatus(msgspec.Struct, frozen=True):
    """A publisher connected or disconnected. active: how many are connected now."""

    active: int


class NodeFailure(msgspec.Struct, frozen=True):
    """The node must abandon the blocks that are not on disk, and all streams end.

    Each plugin discards its parts of unfinished blocks, and ignores later verification results of them. But a block
    whose commit had begun can still be stored: its `PersistedNotification` counts.
    """

    reason: str
    persistence: bool = False
    block_number: int | None = None


class NodeStopping(msgspec.Struct, frozen=True):
    """The node is about to stop, and all streams end. Submitted blocks are still stored."""

    reason: str


Notification: TypeAlias = (
    VerificationNotification
    | PersistedNotification
    | BackfilledBlockNotification
    | NewestBlockKnownToNetwork
    | BlockDamaged
    | CatchUpStalled
    | PublisherStatus
    | NodeFailure
    | NodeStopping
)
Event: TypeAlias = ItemEvent | Notification
ITEM_EVENTS: Final = (BlockBegun, ItemsReceived, BlockEnded, BlockDropped)
"""The types in `ItemEvent`, for checks that run for each event in each plugin: a tuple is faster than a union."""
_WITH_ITEMS: Final = (ItemsReceived, BackfilledBlockNotification)


def event_bytes(event: Event) -> int:
    if isinstance(event, _WITH_ITEMS):
        return event.size_bytes + ITEM_OVERHEAD_BYTES * len(event.items) + EVENT_OVERHEAD_BYTES
    return EVENT_OVERHEAD_BYTES
