"""The messages of a stored block: the parts of its bytes, and the mark of each part (a message header). No I/O.

A block is stored as consecutive messages of its chain's stream. Their joined data is the block as a serialized `Block`,
the content of a `.blk` file. The key of each message is the block's number. Its header `block/1`, the mark, has:

    number | part, from 0 | parts | items and bytes of the whole block | its root hash

This root hash is the most likely one. A header `block_roots/1` lists the other possible ones. If the next block shows
that one of these is right, the first message of the next block has a header `block_before/1` with that root hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

import bare
from stream_service.extensions import Extras, Header, decode_extras, encode_extras

MARK_HEADER: Final = "block/1"
OTHER_ROOTS_HEADER: Final = "block_roots/1"
ROOT_BEFORE_HEADER: Final = "block_before/1"
STREAM_PREFIX = "block_node."
PART_BYTES_MAX: Final = 1024 * 1024
"""The largest part: small enough to be kept in memory and sent whole, and large compared to the overhead of a row."""


# type BlockMark struct { number: u64  part: uint  parts: uint  items: uint  size_bytes: uint  root: data }
class BlockMark(msgspec.Struct, frozen=True):
    number: bare.U64
    part: bare.UInt
    parts: bare.UInt
    items: bare.UInt
    size_bytes: bare.UInt
    root: bytes


_mark_encoder = bare.Encoder(BlockMark)
_mark_decoder = bare.Decoder(BlockMark)
# type OtherRoots list<data>
_roots_encoder = bare.Encoder(list[bytes])
_roots_decoder = bare.Decoder(list[bytes])


def key_of(number: int) -> bytes:
    return number.to_bytes(8, "big")


def headers_of(mark: BlockMark, other_roots: Sequence[bytes] = (), root_before: bytes = b"") -> bytes:
    """Returns the serialized headers of a message. `root_before`: see `NewBlock.corrected_root`."""
    headers = [Header(MARK_HEADER, _mark_encoder.encode(mark))]
    if other_roots:
        headers.append(Header(OTHER_ROOTS_HEADER, _roots_encoder.encode(list(other_roots))))
    if root_before:
        headers.append(Header(ROOT_BEFORE_HEADER, root_before))
    return encode_extras(Extras(headers, None))


def find_other_roots(headers: bytes | None) -> list[bytes]:
    """Returns the possible root hashes of the block besides the one in its mark, if they can be decoded."""
    try:
        return [root for value in _values(headers, OTHER_ROOTS_HEADER) for root in _roots_decoder.decode(value)]
    except bare.DecodeError:
        return []


def find_root_before(headers: bytes | None) -> bytes:
    """Returns the right root hash of the previous block if that block is stored under a wrong one, else b""."""
    return next(iter(_values(headers, ROOT_BEFORE_HEADER)), b"")


def _values(headers: bytes | None, name: str) -> list[bytes]:
    try:
        return [header.value for header in decode_extras(headers).headers if header.name == name]
    except bare.DecodeError:
        return []


def find_mark(headers: bytes | None) -> BlockMark | None:
    try:
        return next(map(_mark_decoder.decode, _values(headers, MARK_HEADER)), None)
    except bare.DecodeError:
        return None


def cut(data: bytes) -> list[bytes]:
    return [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)] or [b""]
