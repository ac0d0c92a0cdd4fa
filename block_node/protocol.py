"""The messages of `block_publish`, as routed BARE messages (specs/block_publish.md, facts/block_node.md §1.3).

A block item is bytes here, one serialized `BlockItem`; what is inside is `block_node.blocks`' business. The protocols
of readers are in `block_node.protocol_reading`. The order of messages is decided in `block_node.publish`.

An item may be larger than a frame: then it goes in messages that have one piece of it each (`Piece`).
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias, cast

import msgspec

import bare
from ockam.protocol import Protocol


# type Piece enum { WHOLE FIRST MIDDLE LAST }
class Piece(enum.IntEnum):
    """What a message with items has: whole items, or the first, a middle or the last piece of one, and nothing else."""

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
    """Why the node ends a publisher's stream; the numbers of the real `EndOfStream.Code`."""

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
    """To the service's address; the session answers from an address of its own, and gets all that follows.

    token: the publisher's choice, at most 64 bytes. An open that comes twice is answered twice by one session.
    """

    token: bytes


# type BlockItems struct { sequence: uint  items: list<data>  piece: Piece }
class BlockItems(msgspec.Struct, frozen=True, gc=False):
    """Items of one block, at least one. The first item of a block is its header, and begins its message.

    sequence: from 0, one more with every message of the session, so that a lost one is noticed.
    """

    sequence: bare.UInt
    items: list[bytes]
    piece: Piece = Piece.WHOLE


# type EndOfBlock struct { sequence: uint  block_number: uint }
class EndOfBlock(msgspec.Struct, frozen=True):
    """All items of the block have been sent. Without it a block is never verified."""

    sequence: bare.UInt
    block_number: bare.U64


# type EndStream struct { sequence: uint  code: PublisherEndCode  earliest_block: optional<u64>
#   latest_block: optional<u64> }
class EndStream(msgspec.Struct, frozen=True):
    """The publisher ends its stream. The blocks that it can still send are earliest to latest, where it says so."""

    sequence: bare.UInt
    code: PublisherEndCode
    earliest_block: bare.U64 | None = None
    latest_block: bare.U64 | None = None


# type OpenRootSession struct { token: data }
class OpenRootSession(msgspec.Struct, frozen=True):
    """As `OpenSession`, for a session that is told `RootAcknowledgement` instead of `Acknowledgement`.

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
    """last_block: the last known verified block, which is also durable. next_block: the lowest that nobody sends."""

    token: bytes
    last_block: bare.U64 | None
    next_block: bare.U64


# type Acknowledgement struct { block_number: u64 }
class Acknowledgement(msgspec.Struct, frozen=True):
    """This block and all before it are verified and on disk, synced."""

    block_number: bare.U64


# type DuplicateBlock struct { block_number: u64  last_block: u64 }
class DuplicateBlock(msgspec.Struct, frozen=True):
    """The offered block is not above the last known verified one. The stream stays open; go on behind `last_block`."""

    block_number: bare.U64
    last_block: bare.U64


# type Behind struct { block_number: u64  last_block: optional<u64>  next_block: u64 }
class Behind(msgspec.Struct, frozen=True):
    """The offered block is above what the node can take. The stream stays open; go on with `next_block`.

    last_block: the last known verified block. Who cannot go back so far ends the stream with TOO_FAR_BEHIND.
    """

    block_number: bare.U64
    last_block: bare.U64 | None
    next_block: bare.U64


# type SkipBlock struct { block_number: u64 }
class SkipBlock(msgspec.Struct, frozen=True):
    """Somebody else sends the offered block, or the node has it by now. The stream stays open; go on with the next."""

    block_number: bare.U64


# type ResendBlock struct { block_number: u64 }
class ResendBlock(msgspec.Struct, frozen=True):
    """The node lacks this block: who is beyond it goes back to it, and on from there. It may come at any time."""

    block_number: bare.U64


# type StreamEnded struct { status: PublishStatus  last_block: optional<u64>  block_number: optional<u64>  reason: str }
class StreamEnded(msgspec.Struct, frozen=True):
    """The node has ended the stream; open another session. block_number: the block that it is about, where it is."""

    status: PublishStatus
    last_block: bare.U64 | None
    block_number: bare.U64 | None
    reason: str


# type DurableBlock struct { block_number: u64  root: data  own: bool }
class DurableBlock(msgspec.Struct, frozen=True):
    """A block that became durable. root: under which it is stored.

    own: what is stored is what this very session sent, up to its EndOfBlock. Where it is false, the block came in
    another way, and the publisher has to compare the root with that of its own bytes.
    """

    block_number: bare.U64
    root: bytes
    own: bool


# type RootAcknowledgement struct { block_number: u64  blocks: list<DurableBlock> }
class RootAcknowledgement(msgspec.Struct, frozen=True):
    """As `Acknowledgement`. blocks: those that it is about, without the ones whose roots are not at hand any more."""

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
