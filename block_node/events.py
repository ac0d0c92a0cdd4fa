"""The events of a block node: the items of blocks, and notifications that plugins send to each other.

The facility (`block_node.facility`) delivers the events to all plugins.

A block is received in one or more attempts. The events of an attempt are, in order: `BlockBegun`, any number of
`ItemsReceived`, then `BlockEnded` or `BlockDropped`. The events of two blocks are never mixed. A block that was dropped
can begin again, with a new attempt number.

After `BlockEnded`, exactly one `VerificationNotification` with the same attempt number follows. If it reports success,
exactly one `PersistedNotification` follows, unless a `NodeFailed` comes first. A failure can be reported before
`BlockEnded`; then no more events of this attempt follow.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

from block_node.protocol import Piece

EVENT_OVERHEAD_BYTES = 128
"""The number of bytes that each event counts for in a queue, in addition to its items."""
ITEM_OVERHEAD_BYTES = 64
"""The number of bytes of memory that an item takes in addition to its content.

The overhead is counted, because a million empty items also occupy memory.
"""


class Source(enum.Enum):
    """Source: where a block came from.

    PUBLISHER: a publisher sent the block.
    BACKFILL: another node sent the block, because it was missing here.
    HISTORY: the block was already on disk.
    """

    PUBLISHER = "publisher"
    BACKFILL = "backfill"
    HISTORY = "history"


class BlockBegun(msgspec.Struct, frozen=True):
    """BlockBegun: the event that the node begins to receive a block.

    attempt: the number of this attempt to receive a block. It rises with each `BlockBegun`, also if the event is for
    another block.
    """

    block_number: int
    attempt: int
    source: Source = Source.PUBLISHER


class ItemsReceived(msgspec.Struct, frozen=True, gc=False):
    """ItemsReceived: the event that items of the current block have arrived.

    items: the items, each a serialized `BlockItem`. The first item of a block is its header, which is never split.
    size_bytes: the total size of the items in bytes.
    piece: whether the event has whole items or one piece of a large item. An item larger than a frame is split over
    several events, so that no plugin needs the whole item in memory.
    """

    block_number: int
    attempt: int
    items: list[bytes]
    size_bytes: int
    piece: Piece = Piece.WHOLE


class BlockEnded(msgspec.Struct, frozen=True):
    """BlockEnded: the event that all items of the block have arrived, so that the block can be verified."""

    block_number: int
    attempt: int


class BlockDropped(msgspec.Struct, frozen=True):
    """BlockDropped: the event that the rest of the block will not arrive. Plugins discard the items received so far.

    reason: a text for the log.
    """

    block_number: int
    attempt: int
    reason: str


ItemEvent: TypeAlias = BlockBegun | ItemsReceived | BlockEnded | BlockDropped


class VerificationNotification(msgspec.Struct, frozen=True):
    """VerificationNotification: the result of verifying a block.

    For blocks that continue the chain, the successes come in the order of block numbers.

    attempt: the number of the attempt in which the block was received. 0 for a block from a backfill.
    success: whether the block is valid.
    root: the root hash of the block. Empty if unknown.
    failure: the reason of the failure, as a `FailureKind` value. None after a success.
    informational: True if nobody caused the failure and nothing needs to be done. For example, the block was already
    verified from another source.
    reason: a description of the failure for the log.
    verifier_state: the serialized state of the chain after this block, to be stored with the block. Empty if the block
    does not continue the chain.
    previous_root: after a success, the root hash of the preceding block, as the footer of this block names it.
    other_roots: the other possible root hashes of the block. The next block shows which one is right.
    corrected_root: the right root hash of the preceding block, if it was accepted with a wrong one. Otherwise empty.
    """

    block_number: int
    attempt: int
    source: Source
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
    """PersistedNotification: the event that a verified block was synced to disk, or could not be stored.

    Blocks are stored in the order in which they were verified. After a failure, no higher block is stored until the
    failed block was verified and stored again, so that a failure leaves no gap. Storing a block a second time with the
    same root hash succeeds.

    succeeded: whether the block is on disk.
    reason: a description of the failure for the log.
    root: the root hash under which the block is stored. Empty if unknown.
    """

    block_number: int
    succeeded: bool
    source: Source
    reason: str = ""
    root: bytes = b""


class BackfilledBlockNotification(msgspec.Struct, frozen=True, gc=False):
    """BackfilledBlockNotification: the event that a whole block was fetched from another node and must be verified.

    items: all items of the block, each a serialized `BlockItem`.
    size_bytes: the total size of the items in bytes.
    roots: the root hashes of which the block must have one: the one that the footer of the next block names, or all
    that are possible for the last block of the chain. Empty if unknown.
    """

    block_number: int
    items: list[bytes]
    size_bytes: int
    source: Source = Source.BACKFILL
    roots: tuple[bytes, ...] = ()


class NewestBlockKnownToNetwork(msgspec.Struct, frozen=True):
    """NewestBlockKnownToNetwork: the event that a publisher offers a block, but the node lacks earlier blocks.

    The node must fetch the missing blocks up to this one.
    """

    block_number: int


class BlockDamaged(msgspec.Struct, frozen=True):
    """BlockDamaged: the event that the bytes of a stored block were found damaged or gone. The block is missing now."""

    block_number: int


class CatchUpStalled(msgspec.Struct, frozen=True):
    """CatchUpStalled: the event that the node makes no progress towards the block that publishers offer.

    target_block: the block that publishers offer.
    last_block: the last verified block of the node. None if it has none.
    contacts: the number of offers since the last progress.
    """

    target_block: int
    last_block: int | None
    contacts: int


class PublisherChange(enum.Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


class PublisherStatus(msgspec.Struct, frozen=True):
    """PublisherStatus: the event that a publisher connected or disconnected.

    active: the number of connected publishers after the change.
    """

    change: PublisherChange
    active: int


class NodeFailed(msgspec.Struct, frozen=True):
    """NodeFailed: the event that the node must abandon the blocks in progress. Blocks that are not on disk
    are discarded.

    The streams of all publishers and subscribers end. Each plugin discards its parts of unfinished blocks and waits for
    new blocks. It ignores later verification results of the discarded blocks. But a block whose commit had begun can
    still be stored, and its `PersistedNotification` counts.

    persistence: whether a block could not be stored.
    block_number: the block that caused the failure. None if no block did.
    """

    reason: str
    persistence: bool = False
    block_number: int | None = None


class NodeStopping(msgspec.Struct, frozen=True):
    """NodeStopping: the event that the node is about to stop. The streams of all publishers and subscribers end.

    Blocks that are being stored are still stored. No new block begins.
    """

    reason: str


Notification: TypeAlias = (
    VerificationNotification
    | PersistedNotification
    | BackfilledBlockNotification
    | NewestBlockKnownToNetwork
    | BlockDamaged
    | CatchUpStalled
    | PublisherStatus
    | NodeFailed
    | NodeStopping
)
Event: TypeAlias = ItemEvent | Notification
ITEM_EVENTS: Final = (BlockBegun, ItemsReceived, BlockEnded, BlockDropped)
"""The types in `ItemEvent` as a tuple for `isinstance`.

The check runs for every event in every plugin, and a tuple makes it faster than a union type.
"""
_WITH_ITEMS: Final = (ItemsReceived, BackfilledBlockNotification)


def event_bytes(event: Event) -> int:
    """Returns the number of bytes that an event counts for in a queue."""
    if isinstance(event, _WITH_ITEMS):
        return event.size_bytes + ITEM_OVERHEAD_BYTES * len(event.items) + EVENT_OVERHEAD_BYTES
    return EVENT_OVERHEAD_BYTES
