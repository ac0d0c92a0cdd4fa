"""The messages of `node/stream_append/1`, which appends messages only if the stream ends at an expected index.

So a program needs no lock if its new messages depend on the messages in the stream. If another program has appended
first, nothing is stored. Then the program reads the new messages and tries again. docs/wire.md describes the protocol.
"""

from __future__ import annotations

import enum

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError
from stream_service.extensions import Header
from stream_service.extras import check_beside
from stream_service.limits import StreamLimits


# type AppendedMessage struct { key: optional<data>  headers: list<Header>  data: data }
class AppendedMessage(msgspec.Struct, frozen=True, gc=False):
    key: bytes | None
    headers: list[Header]
    data: bytes


# type AppendRequest struct { request_id: uint  expected: uint  entry_id: optional<u64>
#   messages: list<AppendedMessage> }
class AppendRequest(msgspec.Struct, frozen=True):
    """A request to append messages. The node stores all of them together, or none.

    expected: the index of the first message. It must be the next index of the stream.
    entry_id: the id of the newest entry in the history of the stream, from an earlier answer. If the newest entry is
    another one now, because a mirror became the primary or a backup was restored, nothing is stored. None: any entry.
    """

    request_id: bare.UInt
    expected: bare.UInt
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


APPEND = Protocol("node/stream_append/1", AppendRequest, AppendResponse)


def read_append(payload: bytes, limits: StreamLimits) -> AppendRequest:
    """Decodes an append request. Raises ProtocolError, also if it has no messages, or exceeds a limit."""
    request = APPEND.decode_request(payload)
    if not request.messages:
        raise ProtocolError("an append without messages")
    for message in request.messages:
        check_beside(message.key, message.headers, limits)
    return request
