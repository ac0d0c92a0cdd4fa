"""The messages of `node/stream_bulk/1`, which reads a range of one stream-partition as Arrow columns, page by page.

docs/wire.md describes it. A node without the Arrow packages answers `error`, and its clients pull the messages instead.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol, ProtocolError


# type BulkRead struct { request_id: uint  start: uint  end: uint  size_bytes: uint  data: bool  beside: bool
#   checksum: bool }
class BulkRead(msgspec.Struct, frozen=True):
    """A request for one page of messages, from index `start` up to, not including, index `end`."""

    request_id: bare.UInt
    start: bare.UInt
    end: bare.UInt
    size_bytes: bare.UInt  # about the largest size of the page; a page that reaches it ends before `end`
    data: bool  # whether the page has the column of data
    beside: bool  # whether the page has the columns of keys and headers
    checksum: bool  # whether the page has the column of checksums


class BulkHead(msgspec.Struct, frozen=True):
    """A BulkPage without its Arrow stream."""

    request_id: bare.UInt
    stream_id: bare.UInt  # goes into the checksums; a later stream of the same name has another id
    created_us: bare.U64
    first_index: bare.UInt
    next_index: bare.UInt
    start: bare.UInt  # the index of the first of the `rows` messages
    rows: bare.UInt


# type BulkPage struct { request_id: uint  stream_id: uint  created_us: u64  first_index: uint  next_index: uint
#   start: uint  rows: uint  arrow: data }
class BulkPage(BulkHead, frozen=True):
    """The answer to a BulkRead: consecutive messages as Arrow columns."""

    arrow: bytes  # one Arrow IPC stream


BULK = Protocol("node/stream_bulk/1", BulkRead, BulkPage)


_page_encoder: bare.Encoder[BulkPage] = bare.Encoder(BulkPage)
_uint_encoder = bare.Encoder(bare.UInt)
_uint_decoder: bare.Decoder[int] = bare.Decoder(bare.UInt)
_head_decoder = bare.Decoder(BulkHead)


def page_payload(page: BulkPage, arrow: bytes | bytearray) -> bytes:
    """Returns the payload of a page. The Arrow stream is passed as `arrow`, so that its megabytes are copied only once;
    `page.arrow` must be empty."""
    assert not page.arrow, "the Arrow stream is given as `arrow`, not in the page"
    head = _page_encoder.encode(page)[:-1] + _uint_encoder.encode(len(arrow))
    return b"".join((BULK.tag, _uint_encoder.encode(len(head) + len(arrow)), head, arrow))


def split_page(payload: bytes) -> tuple[BulkHead, memoryview]:
    """Decodes the payload of a page without copying its Arrow stream. Raises ProtocolError."""
    if not BULK.is_in(payload):
        raise ProtocolError(f"the payload is not a {BULK.name} message")
    try:
        size, begin = _uint_decoder.decode_prefix(payload, len(BULK.tag))
        head, at = _head_decoder.decode_prefix(payload, begin)
        arrow_bytes, at = _uint_decoder.decode_prefix(payload, at)
    except bare.DecodeError as error:
        raise ProtocolError(f"{BULK.name} response: {error}") from error
    if not begin + size == at + arrow_bytes == len(payload):
        raise ProtocolError(f"{BULK.name} response: sizes that do not fit")
    return head, memoryview(payload)[at:]
