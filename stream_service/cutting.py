"""The messages of `node/stream_pull/2`, by which a program that shows messages reads only their beginnings
(docs/wire.md)."""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol
from stream_service.extensions import Header, Start


# type CutPull struct { request_id: uint  start: Start  limit: uint  wait_ms: uint  data_bytes_max: uint }
class CutPull(msgspec.Struct, frozen=True):
    """A RichPull for a program that wants no more than the first `data_bytes_max` bytes of each message."""

    request_id: bare.UInt
    start: Start
    limit: bare.UInt
    wait_ms: bare.UInt
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
    """The answer to a CutPull. The bounds are those of the stream."""

    request_id: bare.UInt
    first_index: bare.UInt
    next_index: bare.UInt
    resume_index: bare.UInt
    messages: list[CutMessage]


CUT_PULL = Protocol("node/stream_pull/2", CutPull, CutPage)
