"""The messages of `node/stream_bulk/1`, which reads a range of one stream-partition as Arrow columns, page by page.

This protocol is not part of the specification; docs/wire.md describes it for authors of other clients. A node without
the Arrow packages answers with `error`, and its clients pull the messages instead.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol


# type BulkRead struct { request_id: uint  start: uint  end: uint  size_bytes: uint  data: bool  beside: bool
#   checksum: bool }
class BulkRead(msgspec.Struct, frozen=True):
    """A request for one page of messages, from index `start` up to, not including, index `end`.

    size_bytes: the approximate largest size of the page, in bytes. The page ends before `end` if it reaches this size.
    data: whether the page has the column of data.
    beside: whether the page has the columns of keys and headers.
    checksum: whether the page has the column of checksums.
    """

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
    """The answer to a BulkRead: consecutive messages as Arrow columns.

    stream_id, created_us: the id of the stream, and its time of creation in microseconds since 1970. A later stream of
    the same name has other values. The checksums are computed with `stream_id`.
    first_index: the index of the stream's earliest message.
    next_index: the index that the next message of the stream will get.
    start, rows: the index of the first message in the page, and the number of messages.
    arrow: the messages as one Arrow IPC stream.
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
    """Returns the encoded payload of a page.

    arrow: the Arrow stream with the messages of the page. `page.arrow` must be empty.
    The Arrow stream is a parameter of its own, so that its megabytes are copied only once.
    """
    assert not page.arrow, "the Arrow stream is given as `arrow`, not in the page"
    head = _page_encoder.encode(page)[:-1] + _uint_encoder.encode(len(arrow))
    return b"".join((BULK.tag, _uint_encoder.encode(len(head) + len(arrow)), head, arrow))
