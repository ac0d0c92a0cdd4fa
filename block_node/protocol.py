"""The messages of `block_publish`, as routed BARE messages (specs/block_publish.md, facts/block_node.md §1.3).

In these messages a block item is bytes: one serialized `BlockItem`. `block_node.blocks` parses items, and
`block_node.publish` decides the order of messages. The protocols of readers are in `block_node.protocol_reading`.

An item may be larger than a frame. It is then sent in several messages, each with one piece of the item (`Piece`).
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias, cast

import msgspec

import bare
from ockam.protocol import Protocol


# type Piece enum { WHOLE FIRST MIDDLE LAST }
class Piece(enum.IntEnum):
    """The content of a message with items: whole items, or the first, a middle or the last piece of one item."""

    WHOLE = 0
    FIRST = 1
    MIDDLE = 2
    LAST = 3


# type PublisherEndCode enum { UNKNOWN RESET TIMEOUT ERROR TOO_FAR_BEHIND }
class PublisherEndCode(enum.IntEnum):
    """The reason for which a publisher ends its stream; the numbers of the real `EndStream.Code`."""

    UNKNOWN = 0
    RESET = 1
    TIMEOUT = 2
    ERROR = 3
    TOO_FAR_BEHIND = 4


# type PublishStatus enum { UNKNOWN SUCCESS INVALID_REQUEST ERROR TIMEOUT DUPLICATE_BLOCK BAD_BLOCK_PROOF
#   PERSISTENCE_FAILED }
class PublishStatus(enum.IntEnum):
    """The reason for which the node ends a publisher's stream; the numbers of the real `EndOfStream.Code`."""

    UNKNOWN = 0
    SUCCESS = 1
    INVALID_REQUEST = 2
    ERROR = 3
    TIMEOUT = 4
    DUPLICATE_BLOCK = 5
    BAD_BLOCK_PROOF = 6
    PERSISTENCE_FAILED = 7


# type OpenSession struct { token: data }
class OpenSession(msgspec.Struct, frozen=True):
    """Opens a session. A publisher sends it to the service's address; the session answers from its own address and
    receives all further messages.

    token: bytes that the publisher chooses, at most 64. If the same opening message arrives twice, the same session
    answers it twice.
    """

    token: bytes


# type BlockItems struct { sequence: uint  items: list<data>  piece: Piece }
class BlockItems(msgspec.Struct, frozen=True, gc=False):
    """Items of one block, at least one. The first item of a block is its header, and a header begins a new message.

    sequence: starts at 0 and rises by one with every message of the session, so that a lost message is noticed.
    """

    sequence: bare.UInt
    items: list[bytes]
    piece: Piece = Piece.WHOLE


# type EndOfBlock struct { sequence: uint  block_number: uint }
class EndOfBlock(msgspec.Struct, frozen=True):
    """Ends a block: all its items have been sent. A block without this message is never verified."""

    sequence: bare.UInt
    block_number: bare.U64


# type EndStream struct { sequence: uint  code: PublisherEndCode  earliest_block: optional<u64>
#   latest_block: optional<u64> }
class EndStream(msgspec.Struct, frozen=True):
    """Ends the publisher's stream. earliest_block, latest_block: the blocks that the publisher can still send, if it
    names them."""

    sequence: bare.UInt
    code: PublisherEndCode
    earliest_block: bare.U64 | None = None
    latest_block: bare.U64 | None = None


# type OpenRootSession struct { token: data }
class OpenRootSession(msgspec.Struct, frozen=True):
    """Opens a session as `OpenSession` does; its acknowledgements are `RootAcknowledgement` instead of
    `Acknowledgement`.

    A node that does not know this message answers it with `error`; the publisher then sends `OpenSession`.
    """

    token: bytes


# type PublishRequest union { OpenSession = 0 | BlockItems = 1 | EndOfBlock = 2 | EndStream = 3 | OpenRootSession = 4 }
PublishRequest: TypeAlias = OpenSession | BlockItems | EndOfBlock | EndStream | OpenRootSession
_PublishRequest: TypeAlias = Annotated[
    OpenSession | BlockItems | EndOfBlock | EndStream | OpenRootSession,
    bare.Union({0: OpenSession, 1: BlockItems, 2: EndOfBlock, 3: EndStream, 4: OpenRootSession}),
]


# type SessionOpened struct { token: data  last_block: optional<u64>  next_block: u64 }
class SessionOpened(msgspec.Struct, frozen=True):
    """The answer to an opening message. last_block: the last known verified block, which is also durable. next_block:
    the lowest block that the node lacks and no publisher sends."""

    token: bytes
    last_block: bare.U64 | None
    next_block: bare.U64


# type Acknowledgement struct { block_number: u64 }
class Acknowledgement(msgspec.Struct, frozen=True):
    """Acknowledges that block `block_number` and all blocks before it are verified and synced to disk."""

    block_number: bare.U64


# type DuplicateBlock struct { block_number: u64  last_block: u64 }
class DuplicateBlock(msgspec.Struct, frozen=True):
    """Refuses a block that is not above the last known verified block. The stream stays open; the publisher continues
    after `last_block`."""

    block_number: bare.U64
    last_block: bare.U64


# type Behind struct { block_number: u64  last_block: optional<u64>  next_block: u64 }
class Behind(msgspec.Struct, frozen=True):
    """Refuses a block that is too high for the node. The stream stays open; the publisher continues with `next_block`.

    last_block: the last known verified block. A publisher that cannot go back so far ends the stream with
    TOO_FAR_BEHIND.
    """

    block_number: bare.U64
    last_block: bare.U64 | None
    next_block: bare.U64


# type SkipBlock struct { block_number: u64 }
class SkipBlock(msgspec.Struct, frozen=True):
    """Refuses a block that another publisher sends or that the node has received meanwhile. The stream stays open; the
    publisher continues with the next block."""

    block_number: bare.U64


# type ResendBlock struct { block_number: u64 }
class ResendBlock(msgspec.Struct, frozen=True):
    """Asks for a block that the node lacks. A publisher that has gone beyond this block goes back to it, and continues
    from there. The message may arrive at any time."""

    block_number: bare.U64


# type StreamEnded struct { status: PublishStatus  last_block: optional<u64>  block_number: optional<u64>  reason: str }
class StreamEnded(msgspec.Struct, frozen=True):
    """Tells a publisher that the node has ended its stream; the publisher may open another session. block_number: the
    block that caused the end; None if no block did."""

    status: PublishStatus
    last_block: bare.U64 | None
    block_number: bare.U64 | None
    reason: str


# type DurableBlock struct { block_number: u64  root: data  own: bool }
class DurableBlock(msgspec.Struct, frozen=True):
    """A block that became durable. root: the root under which the block is stored.

    own: whether the stored bytes are those that this session sent, up to its EndOfBlock. If False, the block came from
    another source, and the publisher must compare the root with the root of its own bytes.
    """

    block_number: bare.U64
    root: bytes
    own: bool


# type RootAcknowledgement struct { block_number: u64  blocks: list<DurableBlock> }
class RootAcknowledgement(msgspec.Struct, frozen=True):
    """An `Acknowledgement` with roots. blocks: the newly acknowledged blocks, except those whose roots the node does
    not remember any more."""

    block_number: bare.U64
    blocks: list[DurableBlock]


# type PublishResponse union { SessionOpened = 0 | Acknowledgement = 1 | DuplicateBlock = 2 | Behind = 3 | SkipBlock = 4
#   | ResendBlock = 5 | StreamEnded = 6 | RootAcknowledgement = 7 }
PublishResponse: TypeAlias = (
    SessionOpened
    | Acknowledgement
    | DuplicateBlock
    | Behind
    | SkipBlock
    | ResendBlock
    | StreamEnded
    | RootAcknowledgement
)
_PublishResponse: TypeAlias = Annotated[
    SessionOpened
    | Acknowledgement
    | DuplicateBlock
    | Behind
    | SkipBlock
    | ResendBlock
    | StreamEnded
    | RootAcknowledgement,
    bare.Union(
        {
            0: SessionOpened,
            1: Acknowledgement,
            2: DuplicateBlock,
            3: Behind,
            4: SkipBlock,
            5: ResendBlock,
            6: StreamEnded,
            7: RootAcknowledgement,
        }
    ),
]

PUBLISH = Protocol(
    "block_publish", cast("type[PublishRequest]", _PublishRequest), cast("type[PublishResponse]", _PublishResponse)
)
