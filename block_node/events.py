"""The events of a block node, as values: items of blocks, and notifications that plugins send to each other.

The facility (`block_node.facility`) delivers them.

Of one block, in order: `BlockBegun`, `ItemsReceived`…, then `BlockEnded` or `BlockDropped`; never two blocks at once.
A block that was dropped may begin again, under another attempt. After `BlockEnded` exactly one
`VerificationNotification` of that attempt follows, and after a success exactly one `PersistedNotification`, unless a
`NodeFailed` comes between. A failure may be notified before the end of the block; then nothing more of that attempt
comes.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

import msgspec

from block_node.protocol import Piece

EVENT_OVERHEAD_BYTES = 128
"""What an event counts for in a queue beside the items in it."""
ITEM_OVERHEAD_BYTES = 64
"""What an item costs in memory beside its bytes, so that a million empty ones count as what they take."""


class Source(enum.Enum):
    """Where a block came from."""

    PUBLISHER = "publisher"
    BACKFILL = "backfill"
    HISTORY = "history"


class BlockBegun(msgspec.Struct, frozen=True):
    """A block is about to come from a publisher. attempt: rises with every `BlockBegun`, of whichever block."""

    block_number: int
    attempt: int
    source: Source = Source.PUBLISHER


class ItemsReceived(msgspec.Struct, frozen=True, gc=False):
    """Items of the block that has begun, each a serialized `BlockItem`; the first of all is the header, which is whole.

    piece: an item larger than a frame comes in pieces, one an event, so that nobody has to hold it.
    """

    block_number: int
    attempt: int
    items: list[bytes]
    size_bytes: int
    piece: Piece = Piece.WHOLE


class BlockEnded(msgspec.Struct, frozen=True):
    """All items of the block have come; it is to be verified."""

    block_number: int
    attempt: int


class BlockDropped(msgspec.Struct, frozen=True):
    """The rest of the block does not come; forget what came. reason: for people."""

    block_number: int
    attempt: int
    reason: str


ItemEvent: TypeAlias = BlockBegun | ItemsReceived | BlockEnded | BlockDropped


class VerificationNotification(msgspec.Struct, frozen=True):
    """A block was verified, or was not.

    Successes above the last verified block come in the order of block numbers. attempt: 0 where the block did not come
    as items (backfill). root: where it is known. failure: a stable word for what was wrong; None in a success.
    informational: nobody is to blame for the failure and nothing is to be done about it (cancelled, verified before).
    verifier_state: what a verifier must know to continue behind this block, to be kept beside it; empty where this
    block is not the last verified one. previous_root: of a success, what the block's footer names. other_roots: which
    the block may have instead, until the next one says. corrected_root: of the block before, where this one says that
    it is not the root under which that was verified; else empty.
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
    """A verified block is on disk, synced; or could not be stored.

    Blocks are stored in the order in which they were verified. After a failure nothing above that block is stored until
    the block itself is verified anew and stored, so that what is stored has no hole at its end. To store a block again
    that is stored with the same root succeeds. root: under which it is stored; empty where that is not known.
    """

    block_number: int
    succeeded: bool
    source: Source
    reason: str = ""
    root: bytes = b""


class BackfilledBlockNotification(msgspec.Struct, frozen=True, gc=False):
    """A whole block from another node; it is to be verified like any other.

    root: the one that it must have, as the footer of the block above it says; empty where that is not known.
    """

    block_number: int
    items: list[bytes]
    size_bytes: int
    source: Source = Source.BACKFILL
    root: bytes = b""


class NewestBlockKnownToNetwork(msgspec.Struct, frozen=True):
    """A publisher has this block, and the node lacks it and others before it: catch up."""

    block_number: int


class CatchUpStalled(msgspec.Struct, frozen=True):
    """The block that publishers offer does not come closer. contacts: how often one offered while nothing changed."""

    target_block: int
    last_block: int | None
    contacts: int


class PublisherChange(enum.Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


class PublisherStatus(msgspec.Struct, frozen=True):
    """A publisher came or went. active: how many there are now; with 0 the last source has ended."""

    change: PublisherChange
    active: int


class NodeFailed(msgspec.Struct, frozen=True):
    """The node cannot go on as it is. What was not persisted is forgotten; every stream, in and out, ends.

    persistence: that storing failed. block_number: the block that it is about. Whoever holds something of blocks under
    way drops it and awaits new ones; a result that still comes of one of them is ignored, but for a commit's.
    """

    reason: str
    persistence: bool = False
    block_number: int | None = None


class NodeStopping(msgspec.Struct, frozen=True):
    """The node is about to stop: every stream, in and out, ends. What is being stored still is; nothing new begins."""

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
"""`ItemEvent` for `isinstance`, which is asked of every event of every plugin: a union would be made anew each time."""
_WITH_ITEMS: Final = (ItemsReceived, BackfilledBlockNotification)


def event_bytes(event: Event) -> int:
    """What an event counts for in a queue."""
    if isinstance(event, _WITH_ITEMS):
        return event.size_bytes + ITEM_OVERHEAD_BYTES * len(event.items) + EVENT_OVERHEAD_BYTES
    return EVENT_OVERHEAD_BYTES
