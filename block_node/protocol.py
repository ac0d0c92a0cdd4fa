"""The messages of the protocol `block_publish`, as routed BARE messages (specs/block_publish.md, facts/block_node.md
§1.3). `block_node.publish` decides which message is sent when.

An item is bytes: one serialized `BlockItem`. An item larger than a frame is sent in several messages, each with one
piece of it (`Piece`). The protocols of readers are in `block_node.protocol_reading`.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias, cast, get_args

import msgspec

import bare
from ockam.protocol import Protocol


# type Piece enum { WHOLE FIRST MIDDLE LAST }
class Piece(enum.IntEnum):
    """Whether a message has whole items, or the first, a middle or the last piece of one item."""

    WHOLE = 0
    FIRST = 1
    MIDDLE = 2
    LAST = 3


# type PublisherEndCode enum { UNKNOWN RESET TIMEOUT ERROR TOO_FAR_BEHIND }
class PublisherEndCode(enum.IntEnum):
    """Why a publisher ends its stream, with the numbers of the reference block node's `EndStream.Code`."""

    UNKNOWN = 0
    RESET = 1
    TIMEOUT = 2
    ERROR = 3
    TOO_FAR_BEHIND = 4


# type PublishStatus enum { UNKNOWN SUCCESS INVALID_REQUEST ERROR TIMEOUT DUPLICATE_BLOCK BAD_BLOCK_PROOF
#   PERSISTENCE_FAILED }
class PublishStatus(enum.IntEnum):
    """Why the node ends a publisher's stream, with the numbers of the reference block node's `EndOfStream.Code`."""

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
    """A publisher's request to open a session, sent to the address of the service. The session answers from an address
    of its own, to which the publisher sends all further messages. token: bytes that the publisher chooses, at most 64.
    If the same request arrives twice, the same session answers both."""

    token: bytes


# type BlockItems struct { sequence: uint  items: list<data>  piece: Piece }
class BlockItems(msgspec.Struct, frozen=True, gc=False):
    """One or more items of a block. The first item of a block is its header, which also comes first in its message.

    sequence: the number of the message in the session, from 0, in this and the following messages. A gap shows that a
    message was lost.
    """

    sequence: bare.UInt
    items: list[bytes]
    piece: Piece = Piece.WHOLE


# type EndOfBlock struct { sequence: uint  block_number: u64 }
class EndOfBlock(msgspec.Struct, frozen=True):
    """All items of a block were sent. Without this message the block is never verified."""

    sequence: bare.UInt
    block_number: bare.U64


# type EndStream struct { sequence: uint  code: PublisherEndCode  earliest_block: optional<u64>
#   latest_block: optional<u64> }
class EndStream(msgspec.Struct, frozen=True):
    """Ends a publisher's stream. earliest_block, latest_block: the blocks that the publisher can still send."""

    sequence: bare.UInt
    code: PublisherEndCode
    earliest_block: bare.U64 | None = None
    latest_block: bare.U64 | None = None


# type OpenRootSession struct { token: data }
class OpenRootSession(msgspec.Struct, frozen=True):
    """An `OpenSession` from a publisher that wants `RootAcknowledgement`. An older node answers with an error. The
    publisher then sends `OpenSession`."""

    token: bytes


# type PublishRequest union { OpenSession = 0 | BlockItems = 1 | EndOfBlock = 2 | EndStream = 3 | OpenRootSession = 4 }
PublishRequest: TypeAlias = Annotated[
    OpenSession | BlockItems | EndOfBlock | EndStream | OpenRootSession,
    bare.Union({0: OpenSession, 1: BlockItems, 2: EndOfBlock, 3: EndStream, 4: OpenRootSession}),
]


# type SessionOpened struct { token: data  last_block: optional<u64>  next_block: u64 }
class SessionOpened(msgspec.Struct, frozen=True):
    """The answer to a request to open a session.

    last_block: the last verified and stored block, in this and the following messages. None if there is none.
    next_block: the lowest block that the node lacks and that no publisher is sending.
    """

    token: bytes
    last_block: bare.U64 | None
    next_block: bare.U64


# type Acknowledgement struct { block_number: u64 }
class Acknowledgement(msgspec.Struct, frozen=True):
    """Block `block_number` and all earlier blocks are verified and synced to disk."""

    block_number: bare.U64


# type DuplicateBlock struct { block_number: u64  last_block: u64 }
class DuplicateBlock(msgspec.Struct, frozen=True):
    """Rejects a block that the node already has. The stream stays open: the publisher continues after `last_block`."""

    block_number: bare.U64
    last_block: bare.U64


# type Behind struct { block_number: u64  last_block: optional<u64>  next_block: u64 }
class Behind(msgspec.Struct, frozen=True):
    """Rejects a block because the node lacks earlier blocks. The stream stays open: the publisher continues with
    `next_block`. If it no longer has that block, it ends the stream with TOO_FAR_BEHIND."""

    block_number: bare.U64
    last_block: bare.U64 | None
    next_block: bare.U64


# type SkipBlock struct { block_number: u64 }
class SkipBlock(msgspec.Struct, frozen=True):
    """Rejects a block that another publisher is sending or has sent. The publisher continues with the next block."""

    block_number: bare.U64


# type ResendBlock struct { block_number: u64 }
class ResendBlock(msgspec.Struct, frozen=True):
    """Asks the publisher to send a block that the node lacks. A publisher that has already sent later blocks goes back
    to this block and continues from there. The message can arrive at any time."""

    block_number: bare.U64


# type StreamEnded struct { status: PublishStatus  last_block: optional<u64>  block_number: optional<u64>  reason: str }
class StreamEnded(msgspec.Struct, frozen=True):
    """The node has ended the stream of a publisher. block_number: the block that caused the end, if one did."""

    status: PublishStatus
    last_block: bare.U64 | None
    block_number: bare.U64 | None
    reason: str


# type DurableBlock struct { block_number: u64  root: data  own: bool }
class DurableBlock(msgspec.Struct, frozen=True):
    """A block that is now on disk, as a part of a `RootAcknowledgement`.

    root: the root hash under which the block is stored.
    own: whether the stored block is the one that this session sent, up to its EndOfBlock. If not, the publisher must
    compare `root` with the root hash of its own block.
    """

    block_number: bare.U64
    root: bytes
    own: bool


# type RootAcknowledgement struct { block_number: u64  blocks: list<DurableBlock> }
class RootAcknowledgement(msgspec.Struct, frozen=True):
    """An `Acknowledgement` with the root hashes of the newly acknowledged blocks, as far as the node remembers them."""

    block_number: bare.U64
    blocks: list[DurableBlock]


# type PublishResponse union { SessionOpened = 0 | Acknowledgement = 1 | DuplicateBlock = 2 | Behind = 3 | SkipBlock = 4
#   | ResendBlock = 5 | StreamEnded = 6 | RootAcknowledgement = 7 }
_PublishResponse: TypeAlias = (
    SessionOpened
    | Acknowledgement
    | DuplicateBlock
    | Behind
    | SkipBlock
    | ResendBlock
    | StreamEnded
    | RootAcknowledgement
)
PublishResponse: TypeAlias = Annotated[_PublishResponse, bare.Union(dict(enumerate(get_args(_PublishResponse))))]

PUBLISH = Protocol(
    "block_publish", cast("type[PublishRequest]", PublishRequest), cast("type[PublishResponse]", PublishResponse)
)
