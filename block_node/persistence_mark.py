"""What the messages of a persisted block are: its bytes in parts, and the mark that each part carries. Pure.

A block is stored as consecutive messages of its chain's stream. Their data, joined, is the block as a serialized
`Block` (what a `.blk` file holds); each has the block's number as its key and one header `block/1`:

    number | part, from 0 | parts | items and bytes of the whole block | its root hash
"""

from __future__ import annotations

from typing import Final

import msgspec

import bare
from stream_service.extensions import Header
from stream_service.stored import Beside, decode_beside, encode_beside

MARK_HEADER: Final = "block/1"
PART_BYTES_MAX: Final = 1024 * 1024
"""Small beside memory and frames, so that a part can be read, held and sent as one; large beside what a row costs."""


# type BlockMark struct { number: u64  part: uint  parts: uint  items: uint  size_bytes: uint  root: data }
class BlockMark(msgspec.Struct, frozen=True):
    """The value of the header `block/1`: which part, from 0, of how many; items, bytes and root of the whole block."""

    number: bare.U64
    part: bare.UInt
    parts: bare.UInt
    items: bare.UInt
    size_bytes: bare.UInt
    root: bytes


_mark_encoder = bare.Encoder(BlockMark)
_mark_decoder = bare.Decoder(BlockMark)


def key_of(number: int) -> bytes:
    """The key of a block's messages: the number, 8 bytes, big-endian."""
    return number.to_bytes(8, "big")


def headers_of(mark: BlockMark) -> bytes:
    """What is stored beside a message, as the stream service reads it."""
    return encode_beside(Beside([Header(MARK_HEADER, _mark_encoder.encode(mark))], None))


def find_mark(headers: bytes | None) -> BlockMark | None:
    """The mark of a stored message; None where it has none that can be read."""
    try:
        for header in decode_beside(headers).headers:
            if header.name == MARK_HEADER:
                return _mark_decoder.decode(header.value)
    except bare.DecodeError:
        return None
    return None


def cut(data: bytes) -> list[bytes]:
    """A block's bytes in parts; at least one."""
    return [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)] or [b""]
