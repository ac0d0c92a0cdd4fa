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
    """Where a block came from. BACKFILL: another node, because it was missing here. HISTORY: it was already on disk."""

    PUBLISHER = "publisher"
    BACKFILL = "backfill"
    HISTORY = "history"


class BlockBegun(msgspec.Struct, frozen=True):
    """The node begins to receive a block. `attempt` rises with each `BlockBegun`, also of another block."""

    block_number: int
    attempt: int
    source: BlockOrigin = BlockOrigin.PUBLISHER


class ItemsReceived(msgspec.Struct, frozen=True, gc=False):
    """Items of the current block have arrived. The first item of a block is its header, which is never split. Larger
    items come in pieces in several events, so that no plugin needs a whole one in memory."""

    block_number: int
    attempt: int
    items: list[bytes]
    size_bytes: int
    piece: Piece = Piece.WHOLE


class BlockEnded(msgspec.Struct, frozen=True):
    """All items of the block have arrived, so that it can be verified."""

    block_number: int
    attempt: int


class BlockDropped(msgspec.Struct, frozen=True):
    """The rest of the block will not arrive. Plugins discard the items received so far. `reason` is for the log."""

    block_number: int
    attempt: int
    reason: str


ItemEvent: TypeAlias = BlockBegun | ItemsReceived | BlockEnded | BlockDropped


class VerificationNotification(msgspec.Struct, frozen=True):
    """The result of verifying a block. For blocks that continue the chain, the successes come in the order of numbers.

    attempt: the attempt in which the block was received. 0 for a block that came whole (`BackfilledBlockNotification`).
    root: empty if unknown. other_roots: the other possible root hashes; the next block shows which one is right.
    failure: the reason, as a `FailureKind` value, and in words for the log in `reason`.
    informational: nobody caused the failure, for example because the block was already verified from another source.
    verifier_state: the state of the chain after this block, to be stored with it. Empty if the block does not continue
    it.
    previous_root: after a success, the root hash of the preceding block, as the footer of this block names it.
    corrected_root: the right root hash of the preceding block, if it was accepted with a wrong one. Otherwise empty.
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
    """A verified block was synced to disk, or could not be stored.

    Blocks are stored in the order in which they were verified. After a failure, no higher block is stored until the
    failed one was verified and stored again, so that no gap remains. Storing the same block again succeeds.
    A block that turns out to be on disk after a crash or a commit in doubt is reported once more, as HISTORY.
    """

    block_number: int
    succeeded: bool
    source: BlockOrigin
    reason: str = ""
    root: bytes = b""


class BackfilledBlockNotification(msgspec.Struct, frozen=True, gc=False):
    """A whole block must be verified: from another node, or sent again by a publisher (`publish.mending`). roots: the
    block must have one of these, by the footer of the next block or the end of the chain; empty if unknown."""

    block_number: int
    items: list[bytes]
    size_bytes: int
    source: BlockOrigin = BlockOrigin.BACKFILL
    roots: tuple[bytes, ...] = ()


class NewestBlockKnownToNetwork(msgspec.Struct, frozen=True):
    """A publisher offers a block, but the node lacks earlier blocks. The node must fetch the missing ones up to it."""

    block_number: int


class BlockDamaged(msgspec.Struct, frozen=True):
    """The bytes of a stored block were found damaged or gone. The block is missing now."""

    block_number: int


class CatchUpStalled(msgspec.Struct, frozen=True):
    """The node makes no progress towards the block that publishers offer, after `contacts` offers."""

    target_block: int
    last_block: int | None
    contacts: int


class PublisherStatus(msgspec.Struct, frozen=True):
    """A publisher connected or disconnected. active: the publishers that are connected now."""

    active: int


class NodeFailure(msgspec.Struct, frozen=True):
    """The node must abandon the blocks in progress: blocks that are not on disk are discarded, and all streams end.

    Each plugin discards its parts of unfinished blocks and waits for new ones. It ignores later verification results of
    the discarded blocks. But a block whose commit had begun can still be stored: its `PersistedNotification` counts.
    """

    reason: str
    persistence: bool = False
    block_number: int | None = None


class NodeStopping(msgspec.Struct, frozen=True):
    """The node is about to stop, and all streams end. Submitted blocks are still stored. No new block begins."""

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
