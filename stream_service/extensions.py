"""Protocols of our own for streams, beyond the specification: names begin with `node/` and end with a version.

Sent to a stream's address: `node/stream_info/1`, `node/stream_push/1`, `node/stream_pull/1`, `node/stream_truncate/1`,
`node/stream_delete/1`, `node/stream_retention/1`. Sent to the stream service: `node/stream_list/1`. Sent by a stream
to those who push: `node/push_failed/1`. What cannot be served is answered with `error`, as everywhere. docs/wire.md
describes them for others.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

import bare
from ockam.protocol import Protocol


# type Header struct { name: str  value: data }
class Header(msgspec.Struct, frozen=True, gc=False):
    """One named value beside a message's data. Names may repeat; their order is kept."""

    name: str
    value: bytes


# type Retention struct { age_s: optional<uint>  messages: optional<uint>  size_bytes: optional<uint> }
class Retention(msgspec.Struct, frozen=True):
    """What a stream-partition keeps at most: the oldest messages beyond any of these go. None is no such limit."""

    age_s: bare.UInt | None = None
    messages: bare.UInt | None = None
    size_bytes: bare.UInt | None = None


# type StreamInfo struct { stream_name: str  partition: uint  first_index: uint  next_index: uint  size_bytes: uint
#   created_us: u64  first_time_us: optional<u64>  last_time_us: optional<u64>  retention: optional<Retention> }
class StreamInfo(msgspec.Struct, frozen=True):
    """One stream-partition as it is now.

    first_index, next_index: of the earliest stored message, and of the one to come; equal where none is stored.
    size_bytes: of the stored data. Times in microseconds since 1970: made, earliest and latest stored message.
    retention: the stream's own; None where the node's default holds.
    """

    stream_name: str
    partition: bare.UInt
    first_index: bare.UInt
    next_index: bare.UInt
    size_bytes: bare.UInt
    created_us: bare.U64
    first_time_us: bare.U64 | None
    last_time_us: bare.U64 | None
    retention: Retention | None

    @property
    def count(self) -> int:
        """How many messages are stored; there are no gaps."""
        return self.next_index - self.first_index


# type InfoRequest struct { request_id: uint }
class InfoRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt


# type InfoResponse struct { request_id: uint  info: StreamInfo }
class InfoResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    info: StreamInfo


# type StreamKey struct { stream_name: str  partition: uint }
class StreamKey(msgspec.Struct, frozen=True):
    stream_name: str
    partition: bare.UInt


# type ListRequest struct { request_id: uint  prefix: str  after: optional<StreamKey>  limit: uint }
class ListRequest(msgspec.Struct, frozen=True):
    """Streams whose name begins with `prefix`, by name and partition, beyond `after`; the node bounds `limit`."""

    request_id: bare.UInt
    prefix: str
    after: StreamKey | None
    limit: bare.UInt


# type ListResponse struct { request_id: uint  streams: list<StreamInfo>  more: bool }
class ListResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    streams: list[StreamInfo]
    more: bool


# type Sequence struct { publisher_id: data  sequence: uint }
class Sequence(msgspec.Struct, frozen=True, gc=False):
    """The place of a message in what one publisher sends to one stream-partition; numbers rise by 1 from any start."""

    publisher_id: bytes
    sequence: bare.UInt


# type RichPush struct { request_id: uint  data: data  key: optional<data>  headers: list<Header>
#   sequence: optional<Sequence> }
class RichPush(msgspec.Struct, frozen=True, gc=False):
    """A push with a key and headers, and with a sequence where it is to be stored once however often it is sent."""

    request_id: bare.UInt
    data: bytes
    key: bytes | None
    headers: list[Header]
    sequence: Sequence | None


# type RichStatus enum { OK ERROR DUPLICATE OUT_OF_ORDER REFUSED }
class RichStatus(enum.IntEnum):
    """DUPLICATE: stored before, at `index`. OUT_OF_ORDER: a sequence that skips numbers; not stored.

    REFUSED: larger than a stream keeps, and not stored; sent again, it is refused again.
    """

    OK = 0
    ERROR = 1
    DUPLICATE = 2
    OUT_OF_ORDER = 3
    REFUSED = 4


# type RichConfirm struct { request_id: uint  status: RichStatus  index: uint  expected: uint }
class RichConfirm(msgspec.Struct, frozen=True, gc=False):
    """index: where the message is stored (OK, DUPLICATE). expected: the next sequence number (OUT_OF_ORDER), else 0."""

    request_id: bare.UInt
    status: RichStatus
    index: bare.UInt
    expected: bare.UInt


# type Outcome enum { NOT_STORED REFUSED UNKNOWN }
class Outcome(enum.IntEnum):
    """NOT_STORED: it is not stored; sent again, it may be. REFUSED: it is not stored, and never will be as it is.

    UNKNOWN: it may be stored or not; the node finds out when it is started again.
    """

    NOT_STORED = 0
    REFUSED = 1
    UNKNOWN = 2


# type PushFailure struct { request_id: uint  outcome: Outcome  reason: str }
class PushFailure(msgspec.Struct, frozen=True):
    """What became of a push that was not confirmed, in place of a confirm with ERROR or REFUSED.

    Only a peer whose return address begins with TOLD gets it; everybody else gets the confirm of their protocol.
    """

    request_id: bare.UInt
    outcome: Outcome
    reason: str


TOLD = b"node/1/"
"""How the address begins to which `node/push_failed/1` may be sent. Real peers give other addresses, and so never see
a message that they do not know."""


# type FromIndex struct { index: uint }
class FromIndex(msgspec.Struct, frozen=True):
    """From this index on; 0 is the earliest stored."""

    index: bare.UInt


# type FromTime struct { time_us: u64 }
class FromTime(msgspec.Struct, frozen=True):
    """From the first message from which on all were published at that time or later (microseconds since 1970)."""

    time_us: bare.U64


# type FromEnd struct { messages: uint }
class FromEnd(msgspec.Struct, frozen=True):
    """The last so many messages; 0 is only what comes from now on."""

    messages: bare.UInt


# type Start union { FromIndex = 0 | FromTime = 1 | FromEnd = 2 }
Start: TypeAlias = Annotated[FromIndex | FromTime | FromEnd, bare.Union({0: FromIndex, 1: FromTime, 2: FromEnd})]


# type RichPull struct { request_id: uint  start: Start  limit: uint  wait_ms: uint }
class RichPull(msgspec.Struct, frozen=True):
    """wait_ms: how long the node may hold the answer while there is nothing to send; it bounds it (5,000)."""

    request_id: bare.UInt
    start: Start
    limit: bare.UInt
    wait_ms: bare.UInt


# type RichMessage struct { index: uint  time_us: u64  key: optional<data>  headers: list<Header>  data: data }
class RichMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message with when it was published, in microseconds since 1970, and what was pushed beside its data."""

    index: bare.UInt
    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    data: bytes


# type RichPage struct { request_id: uint  first_index: uint  next_index: uint  resume_index: uint
#   messages: list<RichMessage> }
class RichPage(msgspec.Struct, frozen=True):
    """first_index, next_index: the stream's. resume_index: where the next pull goes on, also after an empty page."""

    request_id: bare.UInt
    first_index: bare.UInt
    next_index: bare.UInt
    resume_index: bare.UInt
    messages: list[RichMessage]


# type BeforeIndex struct { index: uint }
class BeforeIndex(msgspec.Struct, frozen=True):
    index: bare.UInt


# type BeforeTime struct { time_us: u64 }
class BeforeTime(msgspec.Struct, frozen=True):
    time_us: bare.U64


# type Before union { BeforeIndex = 0 | BeforeTime = 1 }
Before: TypeAlias = Annotated[BeforeIndex | BeforeTime, bare.Union({0: BeforeIndex, 1: BeforeTime})]


# type TruncateRequest struct { request_id: uint  before: Before }
class TruncateRequest(msgspec.Struct, frozen=True):
    """Delete the messages before that index, or published before that time."""

    request_id: bare.UInt
    before: Before


# type TruncateResponse struct { request_id: uint  deleted: uint  first_index: uint }
class TruncateResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    deleted: bare.UInt
    first_index: bare.UInt


# type DeleteRequest struct { request_id: uint }
class DeleteRequest(msgspec.Struct, frozen=True):
    """Delete the stream-partition with all that it stores; its address is free afterwards."""

    request_id: bare.UInt


DELETED = "the stream has been deleted"
"""Why requests are answered with `error` that wait when a stream is deleted; the end of the reason."""


# type DeleteResponse struct { request_id: uint  deleted: uint }
class DeleteResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    deleted: bare.UInt


# type RetentionRequest struct { request_id: uint  retention: optional<Retention> }
class RetentionRequest(msgspec.Struct, frozen=True):
    """Set the stream's own retention; None returns it to the node's default."""

    request_id: bare.UInt
    retention: Retention | None


INFO = Protocol("node/stream_info/1", InfoRequest, InfoResponse)
LIST = Protocol("node/stream_list/1", ListRequest, ListResponse)
RICH_PUSH = Protocol("node/stream_push/1", RichPush, RichConfirm)
PUSH_FAILED = Protocol("node/push_failed/1", PushFailure, PushFailure)
RICH_PULL = Protocol("node/stream_pull/1", RichPull, RichPage)
TRUNCATE = Protocol("node/stream_truncate/1", TruncateRequest, TruncateResponse)
DELETE = Protocol("node/stream_delete/1", DeleteRequest, DeleteResponse)
RETENTION = Protocol("node/stream_retention/1", RetentionRequest, InfoResponse)
