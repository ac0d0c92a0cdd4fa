"""The messages of `node/mirror/1`, by which an operator adds, promotes and removes the mirrors of a node.

A client sends the requests to the address ADDRESS of the node that has the mirrors, or will have them. docs/wire.md
describes the protocol.
"""

from __future__ import annotations

import enum

import msgspec

import bare
from ockam.protocol import Protocol

ADDRESS = "mirror"
"""The address of the service."""


# type MirrorAction enum { STATUS ADD PROMOTE REMOVE }
class MirrorAction(enum.IntEnum):
    """What a request asks for."""

    STATUS = 0  # report the states of the mirrors of the node
    ADD = 1  # follow a stream of another node
    PROMOTE = 2  # make the mirror of a stream its primary
    REMOVE = 3  # stop following; the messages stay, in a stream of its own


# type MirrorRequest struct { request_id: uint  action: MirrorAction  stream_name: str  source: str  source_name: str
#   force: bool  promotion_id: u64  source_goes_on: bool }
class MirrorRequest(msgspec.Struct, frozen=True):
    """A request of an operator."""

    request_id: bare.UInt
    action: MirrorAction
    stream_name: str = ""  # the stream on this node, with all its partitions; with STATUS, empty stands for all streams
    source: str = ""  # with ADD, the `host:port` of the node with the source
    source_name: str = ""  # with ADD, the name of the source; empty: the same name
    # With ADD, whether messages of this node that the source does not have are moved to another stream. With PROMOTE,
    # whether the mirror becomes a primary without its source, whatever it lacks.
    force: bool = False
    # With PROMOTE without `force`, a random number that the client has chosen for this promotion, not 0. The client
    # asks again with the same number until the promotion is done.
    promotion_id: bare.U64 = 0
    # With PROMOTE and `force`, whether the mirror is promoted although its source answers, takes pushes, and cannot be
    # made a mirror.
    source_goes_on: bool = False


# type MirrorCondition enum { STARTING FOLLOWING UNREACHABLE PARTED FAILED FENCING PROMOTING CIRCLE
#   UNFENCED }
class MirrorCondition(enum.IntEnum):
    """What a mirror does at present."""

    STARTING = 0  # it has not heard of its source since the start of the node
    FOLLOWING = 1  # it gets the messages of its source
    UNREACHABLE = 2  # it does not reach its source, and tries again
    PARTED = 3  # it has messages that its source does not have, so it does not follow
    FAILED = 4  # the source refuses it, or the node cannot store the messages; it tries again
    FENCING = 5  # it is a primary now, and tries to make its former source a mirror
    PROMOTING = 6  # it is being promoted, or its source gets its role back; the source may be a mirror already
    CIRCLE = 7  # it and its source follow each other, so neither takes pushes, until one of the two is promoted
    UNFENCED = 8  # it is a primary, and its former source answers and cannot become a mirror: both may take pushes


PRIMARIES = frozenset({MirrorCondition.FENCING, MirrorCondition.UNFENCED})
"""The conditions of streams that are primaries now, and whose former source is to become a mirror."""

AGREEING = frozenset({MirrorCondition.FOLLOWING, MirrorCondition.CIRCLE})
"""The conditions of mirrors whose messages are those of their source, as its last answer has shown."""


# type MirrorState struct { stream_name: str  partition: uint  condition: MirrorCondition  reason: str  source: str
#   source_name: str  next_index: uint  source_next_index: uint  lag: uint  lag_us: uint  heard_us: u64
#   aside_name: str  aside_messages: uint }
class MirrorState(msgspec.Struct, frozen=True):
    """One partition that follows a source, or that fences its former one."""

    stream_name: str
    partition: bare.UInt
    condition: MirrorCondition
    reason: str  # why it does not follow; empty while it follows
    source: str
    source_name: str
    next_index: bare.UInt
    source_next_index: bare.UInt  # the end of the source, when the mirror last heard of it
    lag: bare.UInt  # the number of messages by which the source was ahead
    lag_us: bare.UInt  # for how long the mirror has had less than all messages of its source, in microseconds
    # The mirror knows of everything that its source had confirmed by this time, in microseconds since 1970; 0 if it has
    # never heard of the source.
    heard_us: bare.U64
    aside_name: str  # the stream that got the messages which the source does not have; empty if there were none
    aside_messages: bare.UInt


# type MirrorResponse struct { request_id: uint  done: bool  mirrors: list<MirrorState> }
class MirrorResponse(msgspec.Struct, frozen=True):
    """The answer to a MirrorRequest."""

    request_id: bare.UInt
    # Whether the request is carried out. A promotion takes as long as the copying of the missing messages: until then,
    # the client asks again.
    done: bool
    mirrors: list[MirrorState]  # of the stream, or all, after the request; before it with PROMOTE and REMOVE


MIRRORS = Protocol("node/mirror/1", MirrorRequest, MirrorResponse)
"""The protocol of operators: add, promote and remove mirrors, and ask how they are."""
