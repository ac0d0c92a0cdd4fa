"""The messages of the protocols for readers of blocks: `block_subscribe`, `block_get` and `block_status`.

They are routed BARE messages with the content of the reference block node's messages (facts/block_node.md §1.4 to
§1.6). An item larger than a frame is sent in several messages, each with one piece of it (`Piece`).
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias, cast, get_args

import msgspec

import bare
from block_node.protocol import Piece
from ockam.protocol import Protocol, ProtocolError

# --- block_subscribe ------------------------------------------------------------------------------------------------


# type SubscribeStatus enum { UNKNOWN SUCCESS INVALID_REQUEST ERROR INVALID_START_BLOCK INVALID_END_BLOCK NOT_AVAILABLE
#   SOURCE_ERROR TOO_SLOW }
class SubscribeStatus(enum.IntEnum):
    """The reason why a subscription ended. The numbers below 7 are those of the reference block node's
    `SubscribeStreamResponse.Code`.

    SOURCE_ERROR: the last source of new blocks disconnected (specs/block_publish.md, "Error Handling"). Subscribe again
    to wait for the next source. TOO_SLOW: the subscriber did not receive blocks fast enough.
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
    """A request for the blocks from `start_block` to `end_block`, inclusive.

    request_id: a number that the subscriber chooses. All answers repeat it.
    start_block: None means the first available block, or the next new block if `end_block` is also None.
    end_block: None means that the subscription never ends.
    early: whether items are sent before their block is verified.
    window_bytes: how many bytes of items may be sent before the subscriber confirms them with `Received`.
    """

    request_id: bare.UInt
    start_block: bare.U64 | None
    end_block: bare.U64 | None
    early: bool
    window_bytes: bare.UInt


# type Received struct { request_id: uint  size_bytes: uint }
class Received(msgspec.Struct, frozen=True):
    """Sent to the address of a subscription: confirms received items, so that the node may send more. size_bytes: the
    bytes of all items received so far."""

    request_id: bare.UInt
    size_bytes: bare.UInt


# type Unsubscribe struct { request_id: uint }
class Unsubscribe(msgspec.Struct, frozen=True):
    """Sent to the address of a subscription: ends it. There is no answer."""

    request_id: bare.UInt


# type SubscribePacked struct { subscribe: Subscribe }
class SubscribePacked(msgspec.Struct, frozen=True):
    """A `Subscribe` from a subscriber that also accepts `PackedItems`. An older node answers with an error; the
    subscriber then sends `Subscribe`."""

    subscribe: Subscribe


# type SubscribeRequest union { Subscribe = 0 | Received = 1 | Unsubscribe = 2 | SubscribePacked = 3 }
SubscribeRequest: TypeAlias = Annotated[
    Subscribe | Received | Unsubscribe | SubscribePacked,
    bare.Union({0: Subscribe, 1: Received, 2: Unsubscribe, 3: SubscribePacked}),
]


# type Subscribed struct { request_id: uint  start_block: optional<u64> }
class Subscribed(msgspec.Struct, frozen=True):
    """The first answer to a subscription. All answers come from the subscription's address. start_block: the first
    block that will be sent. None means the first block that this node will ever store."""

    request_id: bare.UInt
    start_block: bare.U64 | None


# type SubscribedItems struct { request_id: uint  sequence: uint  block_number: u64  verified: bool  items: list<data>
#   piece: Piece }
class SubscribedItems(msgspec.Struct, frozen=True, gc=False):
    """Items of a block, in order, starting with the header.

    sequence: the number of the message in the subscription, from 0, in this and the following messages.
    verified: False only if the subscription is early. Then a message that begins with a header replaces all items of
    the block so far.
    """

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    verified: bool
    items: list[bytes]
    piece: Piece


# type SubscribedBlockEnd struct { request_id: uint  sequence: uint  block_number: u64  root: data }
class SubscribedBlockEnd(msgspec.Struct, frozen=True):
    """All items of a block were sent, and the block is verified."""

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64
    root: bytes


# type SubscribedBlockWithdrawn struct { request_id: uint  sequence: uint  block_number: u64 }
class SubscribedBlockWithdrawn(msgspec.Struct, frozen=True):
    """An early block is incomplete or invalid. The subscriber discards its items. The block is sent again later."""

    request_id: bare.UInt
    sequence: bare.UInt
    block_number: bare.U64


# type SubscriptionEnded struct { request_id: uint  sequence: uint  status: SubscribeStatus  reason: str }
class SubscriptionEnded(msgspec.Struct, frozen=True):
    """The last message of a subscription, with the reason for its end."""

    request_id: bare.UInt
    sequence: bare.UInt
    status: SubscribeStatus
    reason: str


# type PackedItems struct { request_id: uint  sequence: uint  block_number: u64  verified: bool  packed: data
#   piece: Piece }
class PackedItems(msgspec.Struct, frozen=True, gc=False):
    """A `SubscribedItems` with compressed items. packed: one zstd frame that contains the BARE `list<data>` of the
    items and states its uncompressed size. `window_bytes` and `Received` count the uncompressed bytes."""

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
SubscribeResponse: TypeAlias = Annotated[
    UnpackedResponse | PackedItems, bare.Union(dict(enumerate(get_args(UnpackedResponse | PackedItems))))
]

# --- block_get ------------------------------------------------------------------------------------------------------


# type GetStatus enum { UNKNOWN SUCCESS INVALID_REQUEST ERROR NOT_FOUND NOT_AVAILABLE }
class GetStatus(enum.IntEnum):
    """The result of a request for a block, with the numbers of the reference block node's `BlockResponse.Code`.
    NOT_FOUND: the block should be stored, but cannot be read."""

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    NOT_FOUND = 4
    NOT_AVAILABLE = 5


# type GetBlock struct { request_id: uint  block_number: optional<u64>  latest: bool  offset: uint }
class GetBlock(msgspec.Struct, frozen=True):
    """A request for one part of a serialized block, from the byte `offset` on. A reader requests one part after
    another. latest: the newest block is requested, without a number. The later parts are requested by number, because
    the newest block can change."""

    request_id: bare.UInt
    block_number: bare.U64 | None
    latest: bool
    offset: bare.UInt


# type BlockPart struct { request_id: uint  status: GetStatus  block_number: u64  size_bytes: uint  offset: uint
#   root: data  data: data }
class BlockPart(msgspec.Struct, frozen=True):
    """The answer to a `GetBlock`, with as many bytes of the block as fit into a message. size_bytes: the size of the
    whole serialized `Block`. If the status is not SUCCESS, all numbers are 0 and all bytes are empty."""

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
    """A range of block numbers. Both ends are included."""

    first_block: bare.U64
    last_block: bare.U64


# type PluginVersion struct { plugin: str  version: str }
class PluginVersion(msgspec.Struct, frozen=True):
    plugin: str
    version: str


# type StatusDetail struct { version: str  plugins: list<PluginVersion>  available: list<BlockRange>
#   stored: list<BlockRange>  address_book: optional<data> }
class StatusDetail(msgspec.Struct, frozen=True):
    """The details of the status. available: the blocks that can be read now. stored: these, and the blocks that
    retention has deleted. address_book: a serialized `NodeAddressBook`, if the node has one."""

    version: str
    plugins: list[PluginVersion]
    available: list[BlockRange]
    stored: list[BlockRange]
    address_book: bytes | None


# type StatusResponse struct { request_id: uint  first_available: optional<u64>  last_available: optional<u64>
#   only_latest_state: bool  next_expected: optional<u64>  detail: optional<StatusDetail> }
class StatusResponse(msgspec.Struct, frozen=True):
    """The status of a node.

    only_latest_state: always True, as in the reference block node. The field has no meaning for this node.
    next_expected: as the reference block node's `next_expected_block`: the lowest block that the node lacks and that no
    publisher is sending. None while the node starts.
    """

    request_id: bare.UInt
    first_available: bare.U64 | None
    last_available: bare.U64 | None
    only_latest_state: bool
    next_expected: bare.U64 | None
    detail: StatusDetail | None


SUBSCRIBE = Protocol(
    "block_subscribe",
    cast("type[SubscribeRequest]", SubscribeRequest),
    cast("type[SubscribeResponse]", SubscribeResponse),
)
GET = Protocol("block_get", GetBlock, BlockPart)
STATUS = Protocol("block_status", StatusRequest, StatusResponse)


def opening_of(request: SubscribeRequest) -> tuple[Subscribe, bool]:
    """Returns the request that begins a subscription, and whether its items are to be packed. Raises ProtocolError."""
    packs = isinstance(request, SubscribePacked)
    if isinstance(request, SubscribePacked):
        request = request.subscribe
    if not isinstance(request, Subscribe):
        raise ProtocolError("this goes to the address of a subscription, from which its answers come")
    return request, packs
