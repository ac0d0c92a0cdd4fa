"""The events of a block node, as values: items of blocks, and notifications that plugins send to each other.

The facility (`block_node.facility`) delivers them.

The events of one block are, in order: `BlockBegun`, any number of `ItemsReceived`, then `BlockEnded` or `BlockDropped`.
The events of two blocks are never mixed. A dropped block may begin again, with another attempt number. After
`BlockEnded`, exactly one `VerificationNotification` of that attempt follows, and after a success exactly one
`PersistedNotification`, unless a `NodeFailed` comes in between. A failed verification may be notified before the end of
the block; then no more events of that attempt follow.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

from block_node.protocol import Piece

EVENT_OVERHEAD_BYTES = 128
"""The bytes that an event counts for in a queue, in addition to its items."""
ITEM_OVERHEAD_BYTES = 64
"""The bytes that an item takes in memory in addition to its content. With them, a million empty items count for the
memory that they occupy."""


class Source(enum.Enum):
    """The source from which a block came."""

    PUBLISHER = "publisher"
    BACKFILL = "backfill"
    HISTORY = "history"


class BlockBegun(msgspec.Struct, frozen=True):
    """Announces a block from a publisher. attempt: a number that rises with every `BlockBegun`, whichever block it
    announces."""

    block_number: int
    attempt: int
    source: Source = Source.PUBLISHER


class ItemsReceived(msgspec.Struct, frozen=True, gc=False):
    """Items of the block that has begun, each a serialized `BlockItem`. The first item is the header, which is always
    whole.

    piece: an item larger than a frame comes in pieces, one in each event, so that no plugin has to hold the whole item.
    """

    block_number: int
    attempt: int
    items: list[bytes]
    size_bytes: int
    piece: Piece = Piece.WHOLE


class BlockEnded(msgspec.Struct, frozen=True):
    """Announces that all items of the block have arrived and that the block can be verified."""

    block_number: int
    attempt: int


class BlockDropped(msgspec.Struct, frozen=True):
    """Announces that the rest of the block will not arrive: plugins forget its items. reason: a text for the log."""

    block_number: int
    attempt: int
    reason: str


ItemEvent: TypeAlias = BlockBegun | ItemsReceived | BlockEnded | BlockDropped


class VerificationNotification(msgspec.Struct, frozen=True):
    """The result of verifying a block.

    Successes above the last verified block come in the order of block numbers. attempt: 0 if the block did not arrive
    in items (backfill). root: the root of the block; empty if unknown. failure: a stable word for the fault; None after
    a success. informational: nobody caused the failure, and nothing needs to be done (cancelled, or verified before).
    verifier_state: the state from which a verifier can continue after this block, to be stored beside the block; empty
    if this block is not the last verified one. previous_root: after a success, the root that the block's footer names
    for the block before. other_roots: the other possible roots of the block, until the next block decides.
    corrected_root: the root of the block before, if this block shows that it was verified under a wrong root; else
    empty.
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
    """Announces that a verified block is synced to disk, or could not be stored.

    Blocks are stored in the order in which they were verified. After a failure, no block above is stored until the
    failed block is verified and stored again, so that the stored blocks have no hole at their end. Storing a block
    again with the same root succeeds. root: the root under which the block is stored; empty if unknown.
    """

    block_number: int
    succeeded: bool
    source: Source
    reason: str = ""
    root: bytes = b""


class BackfilledBlockNotification(msgspec.Struct, frozen=True, gc=False):
    """A whole block that was fetched from another node and must be verified like any other block.

    root: the root that the block must have, as the footer of the block above names it; empty if that is not known.
    """

    block_number: int
    items: list[bytes]
    size_bytes: int
    source: Source = Source.BACKFILL
    root: bytes = b""


class NewestBlockKnownToNetwork(msgspec.Struct, frozen=True):
    """Announces that a publisher has this block while the node lacks it and earlier blocks, so the node must catch
    up."""

    block_number: int


class CatchUpStalled(msgspec.Struct, frozen=True):
    """Announces that the node does not get closer to the block that publishers offer. contacts: the number of offers
    without progress."""

    target_block: int
    last_block: int | None
    contacts: int


class PublisherChange(enum.Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


class PublisherStatus(msgspec.Struct, frozen=True):
    """Announces that a publisher connected or disconnected. active: the number of publishers now; with 0 the last
    source has ended."""

    change: PublisherChange
    active: int


class NodeFailed(msgspec.Struct, frozen=True):
    """Announces that the node has failed in its present state. Blocks that were not persisted are forgotten, and every
    stream to and from the node ends.

    persistence: whether storing a block failed. block_number: the block that caused the failure. A plugin that holds
    parts of unfinished blocks drops them and waits for new ones. It ignores later results about those blocks, except
    the result of a commit.
    """

    reason: str
    persistence: bool = False
    block_number: int | None = None


class NodeStopping(msgspec.Struct, frozen=True):
    """Announces that the node is about to stop: every stream to and from the node ends. Blocks that are being stored
    are still stored; no new block begins."""

    reason: str


Notification: TypeAlias = (
    VerificationNotification
    | PersistedNotification
    | BackfilledBlockNotification
    | NewestBlockKnownToNetwork
    | CatchUpStalled
    | PublisherStatus
    | NodeFailed
    | NodeStopping
)
Event: TypeAlias = ItemEvent | Notification
ITEM_EVENTS: Final = (BlockBegun, ItemsReceived, BlockEnded, BlockDropped)
"""The types of `ItemEvent` as a tuple for `isinstance`. This is checked for every event and plugin, and a union type
would be built anew at each check."""
_WITH_ITEMS: Final = (ItemsReceived, BackfilledBlockNotification)


def event_bytes(event: Event) -> int:
    """Returns the size in bytes that an event counts for in a queue."""
    if isinstance(event, _WITH_ITEMS):
        return event.size_bytes + ITEM_OVERHEAD_BYTES * len(event.items) + EVENT_OVERHEAD_BYTES
    return EVENT_OVERHEAD_BYTES
