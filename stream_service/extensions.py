"""The messages of the stream protocols that the specification does not have (docs/wire.md).

Each protocol has a name of the form `node/<name>/<version>`. `node/stream_list/1` and `node/where/1` go to the stream
service, and all others to the address of a stream. A stream sends `node/push_failed/1` to a client whose push failed. A
request that cannot be served is answered with `error`.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError
from stream_service.limits import StreamLimits


# type Header struct { name: str  value: data }
class Header(msgspec.Struct, frozen=True, gc=False):
    """One header of a message: a name and a value. A message may have several headers of the same name. Their order is
    kept."""

    name: str
    value: bytes


# type Retention struct { age_s: optional<uint>  messages: optional<uint>  size_bytes: optional<uint> }
class Retention(msgspec.Struct, frozen=True):
    """The limits of a stream-partition. While the stream exceeds one limit, its oldest messages are deleted.

    None in a field means that there is no such limit.
    age_s: the greatest age of a message, in seconds.
    messages: the largest number of messages.
    size_bytes: the largest total size of the data, in bytes.
    """

    age_s: bare.UInt | None = None
    messages: bare.UInt | None = None
    size_bytes: bare.UInt | None = None


# type StreamInfo struct { stream_name: str  partition: uint  first_index: uint  next_index: uint  size_bytes: uint
#   created_us: u64  first_time_us: optional<u64>  last_time_us: optional<u64>  retention: optional<Retention> }
class StreamInfo(msgspec.Struct, frozen=True):
    """The description of one stream-partition. All times are in microseconds since 1970.

    first_index: the index of the earliest stored message.
    next_index: the index that the next message will get. It equals `first_index` if no message is stored.
    size_bytes: the total size of the stored data, in bytes.
    created_us: when the stream was created.
    first_time_us, last_time_us: when the earliest and the latest stored message were published; None if no message is
    stored.
    retention: the limits that were set for this stream; None if the node's default applies.
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
        """The number of stored messages. The indexes of stored messages have no gaps."""
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
    """A request for a page of streams whose names begin with `prefix`, sorted by name and partition."""

    request_id: bare.UInt
    prefix: str
    after: StreamKey | None  # the last stream of the previous page
    limit: bare.UInt  # the most streams of the page; the node may send fewer


# type ListResponse struct { request_id: uint  streams: list<StreamInfo>  more: bool }
class ListResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    streams: list[StreamInfo]
    more: bool


# type Sequence struct { publisher_id: data  sequence: uint }
class Sequence(msgspec.Struct, frozen=True, gc=False):
    """The sequence number of a message, by which the node recognizes a message that is sent again.

    A publisher numbers its messages separately for each stream-partition: the first number is arbitrary, and each later
    one is higher by 1."""

    publisher_id: bytes
    sequence: bare.UInt


# type RichPush struct { request_id: uint  data: data  key: optional<data>  headers: list<Header>
#   sequence: optional<Sequence> }
class RichPush(msgspec.Struct, frozen=True, gc=False):
    """A push with a key and headers."""

    request_id: bare.UInt
    data: bytes
    key: bytes | None
    headers: list[Header]
    sequence: Sequence | None  # a push with a number is stored only once, even if it is sent again


# type RichStatus enum { OK ERROR DUPLICATE OUT_OF_ORDER REFUSED }
class RichStatus(enum.IntEnum):
    """The result of a RichPush."""

    OK = 0  # the message is stored
    ERROR = 1  # the message is not stored, or it is unknown whether it is stored
    DUPLICATE = 2  # it was stored earlier
    OUT_OF_ORDER = 3  # it is not stored, because an earlier sequence number is missing
    REFUSED = 4  # it is not stored, and sending it again is useless


INDEX_KNOWN = 1
"""The value of `expected` in a RichConfirm for a duplicate whose index is known."""


# type RichConfirm struct { request_id: uint  status: RichStatus  index: uint  expected: uint }
class RichConfirm(msgspec.Struct, frozen=True, gc=False):
    """The answer to a RichPush."""

    request_id: bare.UInt
    status: RichStatus
    index: bare.UInt  # for OK and DUPLICATE; 0 otherwise, and for an old duplicate whose index is forgotten
    expected: bare.UInt  # for OUT_OF_ORDER, the number that comes next; INDEX_KNOWN for a DUPLICATE with its index


# type Outcome enum { NOT_STORED REFUSED UNKNOWN }
class Outcome(enum.IntEnum):
    """The outcome of a push that was not confirmed."""

    NOT_STORED = 0  # sending it again may succeed
    REFUSED = 1  # it is not stored, and sending it again is useless
    UNKNOWN = 2  # it may be stored


# type PushFailure struct { request_id: uint  outcome: Outcome  reason: str }
class PushFailure(msgspec.Struct, frozen=True):
    """The answer to a push that failed, for clients whose return address begins with TOLD."""

    request_id: bare.UInt
    outcome: Outcome
    reason: str


TOLD = b"node/1/"
"""The beginning of the return addresses of clients that understand `node/push_failed/1`. Real clients have others."""


BATCHED = TOLD + b"batch/"
"""The beginning of the return addresses of publishers that understand BatchAnswer, also as the confirm of plain pushes.
"""
BATCH_MESSAGES_MAX = 1_000


# type PushBatch struct { request_id: uint  messages: list<data> }
class PushBatch(msgspec.Struct, frozen=True, gc=False):
    """Pushes of messages without key and headers. A batch means the same as its pushes sent one after the other, with
    one frame and one route. docs/wire.md describes when a client may send it."""

    request_id: bare.UInt  # of the first push; each further push has the next number
    messages: list[bytes]  # 1 to BATCH_MESSAGES_MAX


# type BatchFailure struct { outcome: Outcome  reason: str }
class BatchFailure(msgspec.Struct, frozen=True, gc=False):
    outcome: Outcome
    reason: str


# type BatchAnswer struct { request_id: uint  count: uint  index: uint  failure: optional<BatchFailure> }
class BatchAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to pushes that follow each other. They need not be the pushes of one batch. The pushes after the
    first have the next request ids, and the next indexes if they are stored."""

    request_id: bare.UInt  # of the first push, like `index`
    count: bare.UInt
    index: bare.UInt
    failure: BatchFailure | None  # None if the messages are stored


# type FromIndex struct { index: uint }
class FromIndex(msgspec.Struct, frozen=True):
    """The start of a pull: the message at this index, or the earliest stored message if that message is deleted."""

    index: bare.UInt


# type FromTime struct { time_us: u64 }
class FromTime(msgspec.Struct, frozen=True):
    """The start of a pull at a time.

    time_us: the time in microseconds since 1970. The pull starts at the first message such that this message and all
    later ones were published at `time_us` or later.
    """

    time_us: bare.U64


# type FromEnd struct { messages: uint }
class FromEnd(msgspec.Struct, frozen=True):
    """The start of a pull: `messages` messages before the end of the stream. With 0, the pull gets only messages that
    are published later."""

    messages: bare.UInt


# type Start union { FromIndex = 0 | FromTime = 1 | FromEnd = 2 }
Start: TypeAlias = Annotated[FromIndex | FromTime | FromEnd, bare.Union({0: FromIndex, 1: FromTime, 2: FromEnd})]


# type RichPull struct { request_id: uint  start: Start  limit: uint  wait_ms: uint }
class RichPull(msgspec.Struct, frozen=True):
    """A pull that may start at a time or near the end of the stream, and may wait for new messages."""

    request_id: bare.UInt
    start: Start
    limit: bare.UInt  # the most messages of the page; the node may send fewer
    wait_ms: bare.UInt  # how long an answer without a message may be delayed; at most 5,000


# type RichMessage struct { index: uint  time_us: u64  key: optional<data>  headers: list<Header>  data: data }
class RichMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message with its key and headers.

    time_us: when the message was published, in microseconds since 1970.
    """

    index: bare.UInt
    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    data: bytes


# type RichPage struct { request_id: uint  first_index: uint  next_index: uint  resume_index: uint
#   messages: list<RichMessage> }
class RichPage(msgspec.Struct, frozen=True):
    """The answer to a RichPull. `first_index` and `next_index` are the bounds of the stream."""

    request_id: bare.UInt
    first_index: bare.UInt
    next_index: bare.UInt
    resume_index: bare.UInt  # where the next pull must start, also after an empty page
    messages: list[RichMessage]


# type CutPull struct { request_id: uint  start: Start  limit: uint  wait_ms: uint  data_bytes_max: uint }
class CutPull(RichPull, frozen=True):
    """A RichPull for a program that shows messages, and wants no more than the first `data_bytes_max` bytes of each."""

    data_bytes_max: bare.UInt


# type CutMessage struct { index: uint  time_us: u64  key: optional<data>  headers: list<Header>  size_bytes: uint
#   data: data }
class CutMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message with the beginning of its data. size_bytes: the size of the whole data."""

    index: bare.UInt
    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    size_bytes: bare.UInt
    data: bytes


# type CutPage struct { request_id: uint  first_index: uint  next_index: uint  resume_index: uint
#   messages: list<CutMessage> }
class CutPage(msgspec.Struct, frozen=True):
    """The answer to a CutPull. `first_index` and `next_index` are the bounds of the stream."""

    request_id: bare.UInt
    first_index: bare.UInt
    next_index: bare.UInt
    resume_index: bare.UInt
    messages: list[CutMessage]


# type MarkedPull struct { request_id: uint  start: Start  limit: uint  wait_ms: uint  created_us: u64 }
class MarkedPull(RichPull, frozen=True):
    """A RichPull of one incarnation of a stream: a stream that is deleted and created again has a new incarnation.

    created_us: when the incarnation was created, in microseconds since 1970; 0: any. A stream with another time answers
    at once, with an empty page.
    """

    created_us: bare.U64


# type MarkedPage struct { request_id: uint  first_index: uint  next_index: uint  resume_index: uint
#   messages: list<RichMessage>  created_us: u64 }
class MarkedPage(RichPage, frozen=True):
    """The answer to a MarkedPull. created_us: when the stream was created, in microseconds since 1970."""

    created_us: bare.U64


# type PackedPull struct { request_id: uint  start: Start  limit: uint  wait_ms: uint  created_us: u64 }
class PackedPull(MarkedPull, frozen=True):
    """A MarkedPull that is answered by a PackedPage. At the end of the stream, the page can come in several parts: each
    part has the messages that were stored since the part before.

    All parts together have at most `limit` messages and the bytes of one page. `wait_ms` holds for each part anew.
    """


# type Beside struct { at: uint  key: optional<data>  headers: list<Header> }
class Beside(msgspec.Struct, frozen=True):
    """The key and the headers of one message of a PackedPage."""

    at: bare.UInt  # the place of the message in its page, from 0 on
    key: bytes | None
    headers: list[Header]


# type PackedPage struct { request_id: uint  first_index: uint  next_index: uint  resume_index: uint  created_us: u64
#   start: uint  times_us: data  sizes: data  messages: data  beside: list<Beside>  more: bool }
class PackedPage(msgspec.Struct, frozen=True):
    """A page, or a part of a page, of messages with consecutive indexes. `first_index` and `next_index` are the bounds
    of the stream."""

    request_id: bare.UInt
    first_index: bare.UInt
    next_index: bare.UInt
    resume_index: bare.UInt  # where the next pull must start, also after an empty page
    created_us: bare.U64  # when the stream was created, in microseconds since 1970
    start: bare.UInt  # the index of the first message
    times_us: bytes  # the time of each message as u64, or one time for all
    sizes: bytes  # the size of each message's data, as u32
    messages: bytes  # the data of all messages
    beside: list[Beside]  # the keys and headers of the messages that have any
    more: bool  # whether another part follows; a part without messages is the last one


# type BeforeIndex struct { index: uint }
class BeforeIndex(msgspec.Struct, frozen=True):
    """The limit of a deletion: the messages with a lower index are deleted."""

    index: bare.UInt


# type BeforeTime struct { time_us: u64 }
class BeforeTime(msgspec.Struct, frozen=True):
    """The limit of a deletion: the messages published before this time, in microseconds since 1970, are deleted."""

    time_us: bare.U64


# type Before union { BeforeIndex = 0 | BeforeTime = 1 }
Before: TypeAlias = Annotated[BeforeIndex | BeforeTime, bare.Union({0: BeforeIndex, 1: BeforeTime})]


# type TruncateRequest struct { request_id: uint  before: Before }
class TruncateRequest(msgspec.Struct, frozen=True):
    """A request to delete the messages before an index, or the messages published before a time."""

    request_id: bare.UInt
    before: Before


# type TruncateResponse struct { request_id: uint  deleted: uint  first_index: uint }
class TruncateResponse(msgspec.Struct, frozen=True):
    """The result of a deletion: the number of deleted messages, and the lowest index that is left."""

    request_id: bare.UInt
    deleted: bare.UInt
    first_index: bare.UInt


# type DeleteRequest struct { request_id: uint }
class DeleteRequest(msgspec.Struct, frozen=True):
    """A request to delete a stream-partition with all its messages. The positions of its consumers stay."""

    request_id: bare.UInt


# type DeleteAllRequest struct { request_id: uint  keeps_positions: bool }
class DeleteAllRequest(DeleteRequest, frozen=True):
    """A DeleteRequest that says whether the positions of the stream-partition's consumers stay."""

    keeps_positions: bool


DELETED = "the stream has been deleted"
"""The end of the reason in the `error` that answers requests to a deleted stream. Clients compare it."""


# type DeleteResponse struct { request_id: uint  deleted: uint }
class DeleteResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    deleted: bare.UInt


# type RetentionRequest struct { request_id: uint  retention: optional<Retention> }
class RetentionRequest(msgspec.Struct, frozen=True):
    """A request to set the retention of this stream; None means that the node's default applies again."""

    request_id: bare.UInt
    retention: Retention | None


TRACEPARENT_BYTES_MAX = 128
"""The longest traceparent that a node reads. W3C Trace Context has 55 bytes today."""


# type TraceNotice struct { request_id: uint  publisher: str  traceparent: str }
class TraceNotice(msgspec.Struct, frozen=True):
    """The message by which a publisher says to which trace its next push belongs. It has no answer.

    A publisher sends it directly before the push, to the same stream. So pushes keep their bytes. A node that does not
    trace drops the message. A node that does not know the message sends an `error`, which the publisher ignores.
    """

    request_id: bare.UInt  # of the push
    publisher: str  # the last address of the push's return route, which is otherwise the return route of this message
    traceparent: str  # as in the HTTP header of this name (W3C Trace Context)


# type WhereRequest struct { request_id: uint, stream_name: string, partition: uint }
class WhereRequest(msgspec.Struct, frozen=True):
    """A question of a client: which process serves a stream-partition?"""

    request_id: bare.UInt
    stream_name: str
    partition: bare.UInt


# type WhereResponse struct { request_id: uint, address: string, epoch: uint }
class WhereResponse(msgspec.Struct, frozen=True):
    """The answer to a WhereRequest. address: the `host:port` of the member that serves the stream-partition; empty if
    the asked node serves it, or if no node does now. epoch: rises when the owner changes; 0 without a cluster."""

    request_id: bare.UInt
    address: str
    epoch: bare.UInt


INFO = Protocol("node/stream_info/1", InfoRequest, InfoResponse)
LIST = Protocol("node/stream_list/1", ListRequest, ListResponse)
RICH_PUSH = Protocol("node/stream_push/1", RichPush, RichConfirm)
PUSH_BATCH = Protocol("node/push_batch/1", PushBatch, BatchAnswer)
PUSH_FAILED = Protocol("node/push_failed/1", PushFailure, PushFailure)
RICH_PULL = Protocol("node/stream_pull/1", RichPull, RichPage)
CUT_PULL = Protocol("node/stream_pull/2", CutPull, CutPage)
MARKED_PULL = Protocol("node/stream_pull/3", MarkedPull, MarkedPage)
PACKED_PULL = Protocol("node/stream_pull/4", PackedPull, PackedPage)
TRUNCATE = Protocol("node/stream_truncate/1", TruncateRequest, TruncateResponse)
DELETE = Protocol("node/stream_delete/1", DeleteRequest, DeleteResponse)
DELETE_ALL = Protocol("node/stream_delete/2", DeleteAllRequest, DeleteResponse)
RETENTION = Protocol("node/stream_retention/1", RetentionRequest, InfoResponse)
TRACE = Protocol("node/trace/1", TraceNotice, TraceNotice)
WHERE = Protocol("node/where/1", WhereRequest, WhereResponse)


# type Extras struct { headers: list<Header>  sequence: optional<Sequence> }
class Extras(msgspec.Struct, frozen=True):
    """The headers and the sequence number of a message, as its `headers` column has them; NULL without either."""

    headers: list[Header]
    sequence: Sequence | None


_extras_encoder = bare.Encoder(Extras)
_extras_decoder = bare.Decoder(Extras)
NO_EXTRAS = Extras([], None)
encode_extras = _extras_encoder.encode


def encode_beside(headers: list[Header], sequence: Sequence | None = None) -> bytes | None:
    """Encodes the headers and the sequence number of a message for their column; None if it has neither."""
    return encode_extras(Extras(headers, sequence)) if headers or sequence is not None else None


def decode_extras(stored: bytes | None) -> Extras:
    return NO_EXTRAS if stored is None else _extras_decoder.decode(stored)


def check_beside(key: bytes | None, headers: list[Header], limits: StreamLimits) -> None:
    """Raises ProtocolError if the key or the headers of a message are too large."""
    if len(key or b"") > limits.key_bytes_max:
        raise ProtocolError(f"a key of {len(key or b'')} bytes; at most {limits.key_bytes_max}")
    size_bytes = sum(len(each.name.encode()) + len(each.value) for each in headers)
    if size_bytes > limits.headers_bytes_max:
        raise ProtocolError(f"headers of {size_bytes} bytes; at most {limits.headers_bytes_max}")
