"""Block items: the kind of a serialized item, and the parsing of headers and footers. It does not verify blocks.

An item is `bytes`: one serialized protobuf message `BlockItem`. Exactly these bytes are stored in a block and hashed,
and never serialized again, so items of later versions pass through unchanged.

    Block     = (0x0A length item)*
    BlockItem = tag length content          one field; its number is the kind of the item
    tag       = number << 3 | 2             two bytes from number 16 on
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.protobuf import (
    BYTES,
    bytes_field,
    bytes_value,
    number_field,
    number_value,
    read_fields,
    read_fields_once,
    read_varint,
    varint,
)

Item = bytes

BLOCK_ITEM_TAG = 0x0A
"""The protobuf tag that precedes each item, in `Block` as in `BlockItemSet`."""


class ItemKind(IntEnum):
    """The kinds of block items: the field numbers of `BlockItem`."""

    HEADER = 1
    EVENT_HEADER = 2
    ROUND_HEADER = 3
    SIGNED_TRANSACTION = 4
    TRANSACTION_RESULT = 5
    TRANSACTION_OUTPUT = 6
    STATE_CHANGES = 7
    FILTERED = 8
    PROOF = 9
    RECORD_FILE = 10
    TRACE_DATA = 11
    FOOTER = 12
    REDACTED = 19


class BlockHeader(msgspec.Struct, frozen=True):
    """The fields of a block header: the version of the network's API (HAPI), the serialized timestamp, if there is one,
    and the number of the hash algorithm; 0 is SHA-384."""

    number: int
    hapi_version: tuple[int, int, int]
    timestamp: bytes | None
    hash_algorithm: int = 0


class BlockFooter(msgspec.Struct, frozen=True):
    """The root hashes in a block footer: of the preceding block, of the tree over all earlier blocks, and of the
    network's state at the start of the block. Empty if the field is missing."""

    previous_root: bytes
    all_blocks_root: bytes
    state_root: bytes


def item_kind(item: Item | bytearray) -> int:
    """Returns the kind of an item, which `ItemKind` need not list. Raises BlockFormatError."""
    tag, _ = read_varint(bytes(item[:10]), 0)
    if tag & 7 != BYTES or not tag >> 3:
        raise BlockFormatError(f"a block item does not start with tag {tag}")
    return tag >> 3


def item_size(head: bytes) -> int:
    """Returns the total size of an item, from at least its first 20 bytes. Raises BlockFormatError."""
    tag, offset = read_varint(head, 0)
    if tag & 7 != BYTES:
        raise BlockFormatError(f"a block item does not start with tag {tag}")
    content_size, offset = read_varint(head, offset)
    return offset + content_size


def item_content(item: Item) -> memoryview:
    fields = list(read_fields(item))
    if len(fields) != 1 or not isinstance(fields[0][2], memoryview):
        raise BlockFormatError(f"a block item has one field, this one has {len(fields)}")
    return fields[0][2]


def make_item(kind: int, content: bytes) -> Item:
    return bytes_field(kind, content)


def split_block(block: bytes | memoryview) -> Iterator[Item]:
    """Yields the items of a serialized `Block` or `BlockItemSet`. Raises BlockFormatError."""
    view = memoryview(block)
    offset, end = 0, len(view)
    while offset < end:
        start = offset
        if view[offset] != BLOCK_ITEM_TAG:
            raise BlockFormatError("a block has only items", start)
        size, offset = read_varint(view, offset + 1)
        if size > end - offset:
            raise BlockFormatError(f"an item is {size} bytes long, {end - offset} are there", start)
        yield bytes(view[offset : offset + size])
        offset += size


def item_prefix(size: int) -> bytes:
    return b"\x0a" + varint(size)


def read_header(item: Item) -> BlockHeader:
    """Parses a header item. Raises BlockFormatError. Unknown fields are ignored, as the root hash protects them."""
    number, version, timestamp, algorithm = 0, (0, 0, 0), None, 0
    for field, wire, value in read_fields_once(item_content(item), "header"):
        if field == 1:
            version = _read_version(bytes_value(wire, value, "hapi_proto_version"))
        elif field == 3:
            number = number_value(wire, value, "number")
        elif field == 4:
            timestamp = bytes(bytes_value(wire, value, "block_timestamp"))
        elif field == 5:
            algorithm = number_value(wire, value, "hash_algorithm")
    return BlockHeader(number, version, timestamp, algorithm)


def make_header(
    number: int, hapi_version: tuple[int, int, int], seconds: int, nanos: int, hash_algorithm: int = 0
) -> Item:
    version = b"".join(number_field(index, part) for index, part in enumerate(hapi_version, 1))
    timestamp = number_field(1, seconds) + number_field(2, nanos)
    content = bytes_field(1, version) + number_field(3, number) + bytes_field(4, timestamp)
    return make_item(ItemKind.HEADER, content + number_field(5, hash_algorithm))


def read_footer(item: Item) -> BlockFooter:
    """Parses a footer item. Raises BlockFormatError, also for an unknown field, which could change the root hash."""
    roots: dict[int, bytes] = {}
    for field, wire, value in read_fields_once(item_content(item), "footer"):
        if not 1 <= field <= 3:
            raise BlockFormatError(f"the footer has no field {field}")
        roots[field] = bytes(bytes_value(wire, value, "a root hash of the footer"))
    return BlockFooter(roots.get(1, b""), roots.get(2, b""), roots.get(3, b""))


def make_footer(footer: BlockFooter) -> Item:
    roots = (footer.previous_root, footer.all_blocks_root, footer.state_root)
    return make_item(ItemKind.FOOTER, b"".join(bytes_field(index, root) for index, root in enumerate(roots, 1)))


def _read_version(content: memoryview) -> tuple[int, int, int]:
    parts = [0, 0, 0]
    for field, wire, value in read_fields(content):
        if field <= 3:
            parts[field - 1] = number_value(wire, value, "a part of hapi_proto_version")
    return parts[0], parts[1], parts[2]
