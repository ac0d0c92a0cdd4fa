"""The messages of the block protocols that read: `block_subscribe`, `block_get`, `block_status`.

They carry what the real block node's services carry (facts/block_node.md §1.4 to §1.6), as routed BARE messages; the
publishers' protocol is `block_node.protocol`. Who sends what when is the workers' business.

An item may be larger than a frame: then it goes in messages that have one piece of it each, see
`block_node.protocol.Piece`.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias, cast

import msgspec

import bare
from block_node.protocol import Piece
from ockam.protocol import Protocol

# --- block_subscribe ------------------------------------------------------------------------------------------------


# type SubscribeStatus enum { UNKNOWN SUCCESS INVALID_REQUEST ERROR INVALID_START_BLOCK INVALID_END_BLOCK NOT_AVAILABLE
#   SOURCE_ERROR TOO_SLOW }
class SubscribeStatus(enum.IntEnum):
    """Why a subscription has ended: the numbers of the real `SubscribeStreamResponse.Code`, and two of ours.

    SOURCE_ERROR: the last source of blocks has ended (specs/block_publish.md, "Error Handling"); subscribe again to
    wait for the next one. TOO_SLOW: the subscriber did not take what it asked for.
    """

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    INVALID_START_BLOCK = 4
    INVALID_END_BLOCK = 5
    NOT_AVAILABLE = 6
    SOURCE_ERROR = 7
    TOO_SLOW = 8


# type Subscribe struct { request_id: uint  start_block: optional<u64>  end_block: optional<u64>  early: bool
#   window_bytes: uint }
class Subscribe(msgspec.Struct, frozen=True):
    """Blocks from `start_block` (none: with an end the first available, without one only what comes) to `end_block`,
    inclusive (none: endless).

    early: items are sent before their block is verified. window_bytes: how much may be on its way without `Received`.
    """

    request_id: bare.UInt
    start_block: bare.U64 | None
    end_block: bare.U64 | None
    early: bool
    window_bytes: bare.UInt


# type Received struct { request_id: uint  size_bytes: uint }
class Received(msgspec.Struct, frozen=True):
    """To the subscription's address: so many bytes of items have been taken in all; the window moves up to there."""

    request_id: bare.UInt
    size_bytes: bare.UInt


# type Unsubscribe struct { request_id: uint }
class Unsubscribe(msgspec.Struct, frozen=True):
    """To the subscription's address: it ends, without another answer."""

    request_id: bare.UInt


# type SubscribePacked struct { subscribe: Subscribe }
class SubscribePacked(msgspec.Struct, frozen=True):
    """As `Subscribe`, from a subscriber that takes `PackedItems`, too.

    A node that does not know this message answers it with `error`; the subscriber then sends `Subscribe`.
    """

    subscribe: Subscribe


# type SubscribeRequest union { Subscribe = 0 | Received = 1 | Unsubscribe = 2 | SubscribePacked = 3 }
SubscribeRequest: TypeAlias = Subscribe | Received | Unsubscribe | SubscribePacked
_SubscribeRequest: TypeAlias = Annotated[
    Subscribe | Received | Unsubscribe | SubscribePacked,
    bare.Union({0: Subscribe, 1: Received, 2: Unsubscribe, 3: SubscribePacked}),
]


# type Subscribed struct { request_id: uint  start_block: optional<u64> }
class Subscribed(msgspec.Struct, frozen=True):
    """The first answer; it comes from the subscription's own address, as all that follow.

    start_block: the first one that it will send; None where that is the first one that this node will ever have.
    """

    request_id: bare.UInt
    start_block: bare.U64 | None


# type SubscribedItems struct { request_id: uint  sequence: uint  block_number: u64  verified: bool  items: list<data>
#   piece: Piece }
class SubscribedItems(msgspec.Struct, frozen=True, gc=False):
    """Items of a block, from its header on. sequence: from 0, one more with every message of the subscription.

    verified: that they belong to a verified block; in the early mode not yet. There, a message that begins with a
    header begins the block anew.
    """

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    verified: bool
    items: list[bytes]
    piece: Piece


# type SubscribedBlockEnd struct { request_id: uint  sequence: uint  block_number: u64  root: data }
class SubscribedBlockEnd(msgspec.Struct, frozen=True):
    """All items of the block have been sent, and it is verified. root: its root hash."""

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    root: bytes


# type SubscribedBlockWithdrawn struct { request_id: uint  sequence: uint  block_number: u64 }
class SubscribedBlockWithdrawn(msgspec.Struct, frozen=True):
    """Early mode: forget what was sent of this block, since it was not finished or not verified; it begins anew."""

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64


# type SubscriptionEnded struct { request_id: uint  sequence: uint  status: SubscribeStatus  reason: str }
class SubscriptionEnded(msgspec.Struct, frozen=True):
    """The last message of a subscription."""

    request_id: bare.UInt
    sequence: bare.UInt
    status: SubscribeStatus
    reason: str


# type PackedItems struct { request_id: uint  sequence: uint  block_number: u64  verified: bool  packed: data
#   piece: Piece }
class PackedItems(msgspec.Struct, frozen=True, gc=False):
    """As `SubscribedItems`. packed: the `list<data>` of the items in one zstd frame, which says how long that is.

    What the window and `Received` count are the bytes of the items, not these.
    """

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    verified: bool
    packed: bytes
    piece: Piece


# type SubscribeResponse union { Subscribed = 0 | SubscribedItems = 1 | SubscribedBlockEnd = 2 |
#   SubscribedBlockWithdrawn = 3 | SubscriptionEnded = 4 | PackedItems = 5 }
UnpackedResponse: TypeAlias = (
    Subscribed | SubscribedItems | SubscribedBlockEnd | SubscribedBlockWithdrawn | SubscriptionEnded
)
SubscribeResponse: TypeAlias = UnpackedResponse | PackedItems
_SubscribeResponse: TypeAlias = Annotated[
    Subscribed | SubscribedItems | SubscribedBlockEnd | SubscribedBlockWithdrawn | SubscriptionEnded | PackedItems,
    bare.Union(
        {
            0: Subscribed,
            1: SubscribedItems,
            2: SubscribedBlockEnd,
            3: SubscribedBlockWithdrawn,
            4: SubscriptionEnded,
            5: PackedItems,
        }
    ),
]

# --- block_get ------------------------------------------------------------------------------------------------------


# type GetStatus enum { UNKNOWN SUCCESS INVALID_REQUEST ERROR NOT_FOUND NOT_AVAILABLE }
class GetStatus(enum.IntEnum):
    """The numbers of the real `BlockResponse.Code`. NOT_FOUND: in the ranges, but it cannot be read."""

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    NOT_FOUND = 4
    NOT_AVAILABLE = 5


# type GetBlock struct { request_id: uint  block_number: optional<u64>  latest: bool  offset: uint }
class GetBlock(msgspec.Struct, frozen=True):
    """A part of one block: exactly one of a number and `latest`. The reader asks for one part after another.

    offset: in the serialized `Block`, 0 at first; then by number, since the latest may have changed.
    """

    request_id: bare.UInt
    block_number: bare.U64 | None
    latest: bool
    offset: bare.UInt


# type BlockPart struct { request_id: uint  status: GetStatus  block_number: u64  size_bytes: uint  offset: uint
#   root: data  data: data }
class BlockPart(msgspec.Struct, frozen=True):
    """The bytes from `offset` on of the serialized `Block`, which has `size_bytes`; as much as an answer bears.

    root: of the block. Without SUCCESS, number, sizes and bytes are 0 and empty.
    """

    request_id: bare.UInt
    status: GetStatus
    block_number: bare.U64
    size_bytes: bare.UInt
    offset: bare.UInt
    root: bytes
    data: bytes


# --- block_status ---------------------------------------------------------------------------------------------------


# type StatusRequest struct { request_id: uint  detail: bool }
class StatusRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    detail: bool


# type BlockRange struct { first_block: u64  last_block: u64 }
class BlockRange(msgspec.Struct, frozen=True):
    """Inclusive, as in the real messages."""

    first_block: bare.U64
    last_block: bare.U64


# type PluginVersion struct { plugin: str  version: str }
class PluginVersion(msgspec.Struct, frozen=True):
    plugin: str
    version: str


# type StatusDetail struct { version: str  plugins: list<PluginVersion>  available: list<BlockRange>
#   stored: list<BlockRange>  address_book: optional<data> }
class StatusDetail(msgspec.Struct, frozen=True):
    """available: can be read now. stored: were persisted, perhaps not kept. address_book: a `NodeAddressBook`."""

    version: str
    plugins: list[PluginVersion]
    available: list[BlockRange]
    stored: list[BlockRange]
    address_book: bytes | None


# type StatusResponse struct { request_id: uint  first_available: optional<u64>  last_available: optional<u64>
#   only_latest_state: bool  next_expected: optional<u64>  detail: optional<StatusDetail> }
class StatusResponse(msgspec.Struct, frozen=True):
    """next_expected: the lowest block that the node lacks and nobody sends, which a publisher should send next: the
    real node's `next_expected_block`. None while the node starts."""

    request_id: bare.UInt
    first_available: bare.U64 | None
    last_available: bare.U64 | None
    only_latest_state: bool
    next_expected: bare.U64 | None
    detail: StatusDetail | None


SUBSCRIBE = Protocol(
    "block_subscribe",
    cast("type[SubscribeRequest]", _SubscribeRequest),
    cast("type[SubscribeResponse]", _SubscribeResponse),
)
GET = Protocol("block_get", GetBlock, BlockPart)
STATUS = Protocol("block_status", StatusRequest, StatusResponse)
