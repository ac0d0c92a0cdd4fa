"""The messages of the block protocols for readers: `block_subscribe`, `block_get`, `block_status`.

They have the content of the real block node's messages (facts/block_node.md §1.4 to §1.6), as routed BARE messages. The
protocol of publishers is in `block_node.protocol`. The workers decide which message is sent when.

An item may be larger than a frame. It is then sent in several messages with one piece each, see
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
    """The reason for the end of a subscription: the numbers of the real `SubscribeStreamResponse.Code`, and two of our
    own.

    SOURCE_ERROR: the last source of blocks has ended (specs/block_publish.md, "Error Handling"); subscribe again to
    wait for the next source. TOO_SLOW: the subscriber did not take the blocks that it asked for.
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
    """Asks for the blocks from `start_block` to `end_block`, inclusive. If `end_block` is missing, the subscription is
    endless. If `start_block` is missing, it begins with the first available block, or, without an end, with the next
    new block.

    early: whether items are sent before their block is verified. window_bytes: the number of bytes that may be under
    way without `Received`.
    """

    request_id: bare.UInt
    start_block: bare.U64 | None
    end_block: bare.U64 | None
    early: bool
    window_bytes: bare.UInt


# type Received struct { request_id: uint  size_bytes: uint }
class Received(msgspec.Struct, frozen=True):
    """Tells the subscription that the subscriber has taken `size_bytes` bytes of items in total. The window moves up to
    there. It is sent to the subscription's address."""

    request_id: bare.UInt
    size_bytes: bare.UInt


# type Unsubscribe struct { request_id: uint }
class Unsubscribe(msgspec.Struct, frozen=True):
    """Ends the subscription without an answer. It is sent to the subscription's address."""

    request_id: bare.UInt


# type SubscribePacked struct { subscribe: Subscribe }
class SubscribePacked(msgspec.Struct, frozen=True):
    """A `Subscribe` from a subscriber that also accepts `PackedItems`.

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
    """The first answer. It comes from the subscription's own address, as do all further answers.

    start_block: the first block that the subscription will send; None if that is the first block that this node will
    ever store.
    """

    request_id: bare.UInt
    start_block: bare.U64 | None


# type SubscribedItems struct { request_id: uint  sequence: uint  block_number: u64  verified: bool  items: list<data>
#   piece: Piece }
class SubscribedItems(msgspec.Struct, frozen=True, gc=False):
    """Items of a block, in order from its header on. sequence: starts at 0 and rises by one with every message of the
    subscription.

    verified: whether the items belong to a verified block. In the early mode they may not. There, a message that begins
    with a header begins the block anew.
    """

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    verified: bool
    items: list[bytes]
    piece: Piece


# type SubscribedBlockEnd struct { request_id: uint  sequence: uint  block_number: u64  root: data }
class SubscribedBlockEnd(msgspec.Struct, frozen=True):
    """Ends a block: all its items have been sent, and the block is verified. root: its root hash."""

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    root: bytes


# type SubscribedBlockWithdrawn struct { request_id: uint  sequence: uint  block_number: u64 }
class SubscribedBlockWithdrawn(msgspec.Struct, frozen=True):
    """Withdraws a block in the early mode: the subscriber forgets the items of this block, because it was not finished
    or not verified. The block is sent anew later."""

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
    """A `SubscribedItems` whose items are compressed. packed: the `list<data>` of the items in one zstd frame, which
    states its uncompressed size.

    The window and `Received` count the uncompressed bytes of the items.
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
    """The result of a request for a block: the numbers of the real `BlockResponse.Code`. NOT_FOUND: the block is in the
    ranges of stored blocks, but cannot be read."""

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    NOT_FOUND = 4
    NOT_AVAILABLE = 5


# type GetBlock struct { request_id: uint  block_number: optional<u64>  latest: bool  offset: uint }
class GetBlock(msgspec.Struct, frozen=True):
    """Asks for a part of one block, named either by `block_number` or by `latest`. The reader asks for one part after
    another.

    offset: the offset in the serialized `Block`, at first 0. Later parts are asked for by number, since the latest
    block may have changed.
    """

    request_id: bare.UInt
    block_number: bare.U64 | None
    latest: bool
    offset: bare.UInt


# type BlockPart struct { request_id: uint  status: GetStatus  block_number: u64  size_bytes: uint  offset: uint
#   root: data  data: data }
class BlockPart(msgspec.Struct, frozen=True):
    """A part of a serialized `Block` of `size_bytes` bytes: the bytes from `offset` on, as many as fit into an answer.

    root: the root of the block. If the status is not SUCCESS, number, sizes and bytes are 0 and empty.
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
    """A range of block numbers, inclusive at both ends as in the real messages."""

    first_block: bare.U64
    last_block: bare.U64


# type PluginVersion struct { plugin: str  version: str }
class PluginVersion(msgspec.Struct, frozen=True):
    plugin: str
    version: str


# type StatusDetail struct { version: str  plugins: list<PluginVersion>  available: list<BlockRange>
#   stored: list<BlockRange>  address_book: optional<data> }
class StatusDetail(msgspec.Struct, frozen=True):
    """The details of a node's status. available: the blocks that can be read now. stored: all blocks that were ever
    persisted, including those that were deleted since. address_book: a `NodeAddressBook`."""

    version: str
    plugins: list[PluginVersion]
    available: list[BlockRange]
    stored: list[BlockRange]
    address_book: bytes | None


# type StatusResponse struct { request_id: uint  first_available: optional<u64>  last_available: optional<u64>
#   only_latest_state: bool  next_expected: optional<u64>  detail: optional<StatusDetail> }
class StatusResponse(msgspec.Struct, frozen=True):
    """The status of a node. next_expected: the block that a publisher should send next, the lowest block that the node
    lacks and no publisher sends. It is the real node's `next_expected_block`. None while the node starts."""

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
