"""The messages of `node/stream_copy/1`: copies messages from another stream and keeps their indexes and times.

Each request names the index of its first message. The node stores the messages at exactly that index, or stores none of
them. So a client can resume an interrupted copy safely. docs/wire.md §5 describes the protocol for authors of other
clients.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError
from stream_service.extensions import Header
from stream_service.limits import StreamLimits


# type CopiedMessage struct { time_us: u64  key: optional<data>  headers: list<Header>  data: data }
class CopiedMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a copy. time_us: when it was first published, in microseconds since 1970.

    The node raises a time that is before the time of the stream's last message, and lowers a time that is in the
    future. So times never decrease along a stream.
    """

    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    data: bytes


# type CopyRequest struct { request_id: uint  index: uint  messages: list<CopiedMessage> }
class CopyRequest(msgspec.Struct, frozen=True):
    """A request to store copied messages. index: the index of the first message.

    `index` must be the stream's next index. If the stream has never had a message, any index is allowed.
    """

    request_id: bare.UInt
    index: bare.UInt
    messages: list[CopiedMessage]


# type CopyResponse struct { request_id: uint  stored: bool  next_index: uint }
class CopyResponse(msgspec.Struct, frozen=True):
    """The answer to a copy. stored: True if all messages are on disk; False if none was stored, because the stream
    continues at `next_index` and not at the requested index."""

    request_id: bare.UInt
    stored: bool
    next_index: bare.UInt


COPY = Protocol("node/stream_copy/1", CopyRequest, CopyResponse)
INDEX_MAX = 2**62
"""The highest index at which a copy may begin. The log can store indexes up to 2^63 - 1, so there is always room
left."""


def read_copy(payload: bytes, limits: StreamLimits) -> CopyRequest:
    """Decodes a copy request. Raises ProtocolError if it cannot be decoded, has no messages, begins too high, or has a
    key or headers above the limits."""
    request = COPY.decode_request(payload)
    if not request.messages:
        raise ProtocolError("a copy without messages")
    if request.index > INDEX_MAX:
        raise ProtocolError(f"a copy at index {request.index}; the highest is {INDEX_MAX}")
    for message in request.messages:
        if len(message.key or b"") > limits.key_bytes_max:
            raise ProtocolError(f"a key of {len(message.key or b'')} bytes; at most {limits.key_bytes_max}")
        headers_bytes = sum(len(each.name.encode()) + len(each.value) for each in message.headers)
        if headers_bytes > limits.headers_bytes_max:
            raise ProtocolError(f"headers of {headers_bytes} bytes; at most {limits.headers_bytes_max}")
    return request
