"""The messages of `node/stream_copy/1`, which copies messages from another stream and keeps their indexes and times.

The node stores all messages of a request at exactly the index that it names, or none of them. So a client can safely
resume a copy that was interrupted. docs/wire.md §5 describes the protocol.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError
from stream_service.extensions import Header
from stream_service.extras import check_beside
from stream_service.limits import StreamLimits


# type CopiedMessage struct { time_us: u64  key: optional<data>  headers: list<Header>  data: data }
class CopiedMessage(msgspec.Struct, frozen=True, gc=False):
    """One message that is copied from another stream.

    time_us: when the message was first published, in microseconds since 1970. The node stores no time in the future,
    and none before that of the previous message.
    """

    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    data: bytes


# type CopyRequest struct { request_id: uint  index: uint  messages: list<CopiedMessage> }
class CopyRequest(msgspec.Struct, frozen=True):
    """A request to store messages that are copied from another stream.

    index: where the first message goes. It must be the stream's next one, or any in a stream that was never written to.
    """

    request_id: bare.UInt
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


COPY = Protocol("node/stream_copy/1", CopyRequest, CopyResponse)
INDEX_MAX = 2**62
"""The highest index at which a copy may begin, so that there is room for more: the log ends at 2^63 - 1."""


def read_copy(payload: bytes, limits: StreamLimits) -> CopyRequest:
    """Decodes a copy request. Raises ProtocolError, also if it has no messages, or exceeds a limit."""
    request = COPY.decode_request(payload)
    if not request.messages:
        raise ProtocolError("a copy without messages")
    if request.index > INDEX_MAX:
        raise ProtocolError(f"a copy at index {request.index}; the highest is {INDEX_MAX}")
    for message in request.messages:
        check_beside(message.key, message.headers, limits)
    return request
