"""`node/stream_copy/1`: messages that were published elsewhere, stored with their times and under their indexes.

A copy goes on where it stopped: each request says at which index its first message is to stand, and is stored there or
not at all. docs/wire.md §5 describes it for others.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError
from stream_service.extensions import Header
from stream_service.limits import StreamLimits


# type CopiedMessage struct { time_us: u64  key: optional<data>  headers: list<Header>  data: data }
class CopiedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message with when it was published, in microseconds since 1970.

    A time before that of the stream's last message, or after the node's clock, becomes that one: times never fall
    along a stream, and none is in the future.
    """

    time_us: bare.U64
    key: bytes | None
    headers: list[Header]
    data: bytes


# type CopyRequest struct { request_id: uint  index: uint  messages: list<CopiedMessage> }
class CopyRequest(msgspec.Struct, frozen=True):
    """index: of the first message, the stream's next one; any where the stream has never had a message."""

    request_id: bare.UInt
    index: bare.UInt
    messages: list[CopiedMessage]


# type CopyResponse struct { request_id: uint  stored: bool  next_index: uint }
class CopyResponse(msgspec.Struct, frozen=True):
    """stored: all of them, on disk; else nothing of them, since the stream's end is at `next_index` and not at the
    index asked for."""

    request_id: bare.UInt
    stored: bool
    next_index: bare.UInt


COPY = Protocol("node/stream_copy/1", CopyRequest, CopyResponse)
INDEX_MAX = 2**62
"""The highest index at which a copy may begin, far from where the indexes of the log end."""


def read_copy(payload: bytes, limits: StreamLimits) -> CopyRequest:
    """The request. Raises ProtocolError where it cannot be read, or a message is larger than a stream keeps."""
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
