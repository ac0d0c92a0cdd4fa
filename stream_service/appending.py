"""The messages of `node/stream_append/1` and `node/stream_copy/1`, which store messages at exactly the index that the
request names, or none of them. docs/wire.md describes both.

An append has messages of the client. So a program needs no lock if its new messages depend on the messages in the
stream. If another program has appended first, nothing is stored. Then the program reads the new messages and tries
again. A copy has messages of another stream and keeps their times, so a client can safely resume a copy that was
interrupted.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError
from stream_service.extensions import Header, check_beside
from stream_service.limits import StreamLimits


# type AppendedMessage struct { key: optional<data>  headers: list<Header>  data: data }
class AppendedMessage(msgspec.Struct, frozen=True, gc=False):
    key: bytes | None
    headers: list[Header]
    data: bytes


# type AppendRequest struct { request_id: uint  expected: uint  entry_id: optional<u64>
#   messages: list<AppendedMessage> }
class AppendRequest(msgspec.Struct, frozen=True):
    """A request to append messages. The node stores all of them together, or none."""

    request_id: bare.UInt
    expected: bare.UInt  # the index of the first message, which must be the next index of the stream
    # the id of the newest entry in the history of the stream, from an earlier answer; if the newest entry is another
    # one now, because a mirror became the primary or a backup was restored, nothing is stored; None: any entry
    entry_id: bare.U64 | None
    messages: list[AppendedMessage]


# type AppendStatus enum { OK CONFLICT FENCED REFUSED }
class AppendStatus(enum.IntEnum):
    """The result of an AppendRequest. With every status but OK, nothing was stored."""

    OK = 0  # all messages are on disk
    CONFLICT = 1  # the stream does not end at the expected index
    FENCED = 2  # the newest history entry of the stream is not the one of the request
    REFUSED = 3  # the stream is a mirror, which takes no messages


# type AppendResponse struct { request_id: uint  status: AppendStatus  next_index: uint  entry_id: u64 }
class AppendResponse(msgspec.Struct, frozen=True):
    """The answer to an AppendRequest: the end of the stream, and the newest entry of its history, after the request."""

    request_id: bare.UInt
    status: AppendStatus
    next_index: bare.UInt
    entry_id: bare.U64


# type CopiedMessage struct { time_us: u64  key: optional<data>  headers: list<Header>  data: data }
class CopiedMessage(msgspec.Struct, frozen=True, gc=False):
    """One message that is copied from another stream."""

    # when the message was first published, in microseconds since 1970; the node stores no time in the future, and none
    # before that of the previous message
    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    data: bytes


# type CopyRequest struct { request_id: uint  index: uint  messages: list<CopiedMessage> }
class CopyRequest(msgspec.Struct, frozen=True):
    """A request to store messages that are copied from another stream."""

    request_id: bare.UInt
    # where the first message goes: the next index of the stream, or any index of a stream that was never written to
    index: bare.UInt
    messages: list[CopiedMessage]


# type CopyResponse struct { request_id: uint  stored: bool  next_index: uint }
class CopyResponse(msgspec.Struct, frozen=True):
    """The answer to a CopyRequest.

    stored: True if all messages are on disk. False if none was stored, because the requested index is not the stream's
    next index.
    next_index: the stream's next index after the request.
    """

    request_id: bare.UInt
    stored: bool
    next_index: bare.UInt


APPEND = Protocol("node/stream_append/1", AppendRequest, AppendResponse)
COPY = Protocol("node/stream_copy/1", CopyRequest, CopyResponse)
INDEX_MAX = 2**62
"""The highest index at which a copy may begin, so that there is room for more: the log ends at 2^63 - 1."""


def read_append(payload: bytes, limits: StreamLimits) -> AppendRequest:
    """Decodes an append request. Raises ProtocolError, also if it has no messages, or exceeds a limit."""
    request = APPEND.decode_request(payload)
    _check(request.messages, "an append", limits)
    return request


def read_copy(payload: bytes, limits: StreamLimits) -> CopyRequest:
    """Decodes a copy request. Raises ProtocolError, also if it has no messages, or exceeds a limit."""
    request = COPY.decode_request(payload)
    if request.messages and request.index > INDEX_MAX:
        raise ProtocolError(f"a copy at index {request.index}; the highest is {INDEX_MAX}")
    _check(request.messages, "a copy", limits)
    return request


def _check(messages: Sequence[AppendedMessage | CopiedMessage], what: str, limits: StreamLimits) -> None:
    if not messages:
        raise ProtocolError(f"{what} without messages")
    for message in messages:
        check_beside(message.key, message.headers, limits)
