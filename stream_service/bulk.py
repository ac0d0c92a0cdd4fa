"""`node/stream_bulk/1`: a range of one stream-partition as Arrow, page by page, for programs that take columns.

It is a protocol of our own beside those of `stream_service.extensions`; docs/wire.md describes it for others. A node
without the packages that it needs answers `error`, and the messages can be pulled.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol


# type BulkRead struct { request_id: uint  start: uint  end: uint  size_bytes: uint  data: bool  beside: bool
#   checksum: bool }
class BulkRead(msgspec.Struct, frozen=True):
    """Messages from `start` up to, not including, `end`, about `size_bytes` of them at most; which columns to send."""

    request_id: bare.UInt
    start: bare.UInt
    end: bare.UInt
    size_bytes: bare.UInt
    data: bool
    beside: bool
    checksum: bool


# type BulkPage struct { request_id: uint  stream_id: uint  created_us: u64  first_index: uint  next_index: uint
#   start: uint  rows: uint  arrow: data }
class BulkPage(msgspec.Struct, frozen=True):
    """Rows with the indexes from `start` on, without a gap, as one Arrow IPC stream; the stream's bounds after that.

    stream_id, created_us: tell a stream from another made later under its name; the first is part of the checksums.
    """

    request_id: bare.UInt
    stream_id: bare.UInt
    created_us: bare.U64
    first_index: bare.UInt
    next_index: bare.UInt
    start: bare.UInt
    rows: bare.UInt
    arrow: bytes


BULK = Protocol("node/stream_bulk/1", BulkRead, BulkPage)


_page_encoder: bare.Encoder[BulkPage] = bare.Encoder(BulkPage)
_uint_encoder = bare.Encoder(bare.UInt)


def page_payload(page: BulkPage, arrow: bytes | bytearray) -> bytes:
    """The payload of a page whose `arrow` is left empty and given beside it: some megabytes, copied once."""
    assert not page.arrow, "the Arrow stream is given beside the page"
    head = _page_encoder.encode(page)[:-1] + _uint_encoder.encode(len(arrow))
    return b"".join((BULK.tag, _uint_encoder.encode(len(head) + len(arrow)), head, arrow))
