"""Decodes messages that contain blocks of the block node: the number and root of the block, and its items.

A block of more than one MiB is stored as several messages (`block_node.persist.mark`). An item can begin in one message
and end in the next, so this module decodes the items of one-message blocks only. `pipeline.silver_blocks` joins the
messages of larger blocks. The block node verifies each block before storing it, so this module verifies none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_export.decode.decoding import MessageDecoder
from spark_export.decode.times import INT32_MAX, INT64_MAX
from spark_export.errors import OptionError

ITEM = pa.struct(
    [
        pa.field("position", pa.int32(), False),
        pa.field("kind", pa.string(), False),
        pa.field("data", pa.binary(), False),
    ]
)
BLOCK = pa.schema(
    {
        "block_number": pa.int64(),
        "part": pa.int32(),
        "parts": pa.int32(),
        "item_count": pa.int32(),
        "block_bytes": pa.int64(),
        "block_root": pa.binary(),
        "hapi_version": pa.string(),
        "produced": pa.timestamp("us", tz="UTC"),
        "previous_root": pa.binary(),
        "items": pa.list_(pa.field("element", ITEM, False)),
        "problem": pa.string(),
    }
)
"""The columns of the option `decode=block`. Each row describes one message, which is a whole block or one part of it.

part: the number of this message within the block, from 0.
parts: the number of messages of the block.
item_count: the number of items of the whole block.
block_bytes: the size of the whole block in bytes.
block_root: the most likely root hash at the time when the block was stored. The `previous_root` of the next block is
    the right root hash.
hapi_version, produced, previous_root, items: from the decoded block; null if the block has several messages. The `data`
    of an item is the serialized item.
problem: why the message cannot be decoded, or null.
"""


class BlockDecoder(MessageDecoder):
    """The decoder of messages that contain a block of the block node or a part of a block."""

    needs_headers = True

    def _rows(self, keys: pa.Array, data: pa.Array, headers: pa.Array | None) -> list[dict[str, Any]]:
        try:
            import block_node.persist.mark  # noqa: F401
        except ImportError as error:
            raise OptionError("decode=block needs stream-node installed on every worker") from error
        assert headers is not None, "asked for by `needs_headers`"
        wanted = {field.name for field in self.fields}
        with_items = not wanted.isdisjoint(("hapi_version", "produced", "previous_root", "items", "problem"))
        messages = zip(headers.to_pylist(), data.to_pylist(), strict=True)
        return [block_row(*each, with_items=with_items) for each in messages]


def block_row(headers: Iterable[Mapping[str, Any]] | None, data: bytes, *, with_items: bool) -> dict[str, Any]:
    """Returns the values of one row by column name. Absent columns are null."""
    from block_node.blocks.errors import BlockFormatError

    mark = find_mark(headers)
    if mark is None:
        return {"problem": "no header `block/1` that can be read: this is no message of the block node"}
    row = {
        "block_number": mark.number,
        "part": mark.part,
        "parts": mark.parts,
        "item_count": mark.items,
        "block_bytes": mark.size_bytes,
        "block_root": mark.root,
    }
    if not with_items or mark.parts != 1:
        return row
    try:
        block = read_block(data)
    except BlockFormatError as error:
        return row | {"problem": str(error)}
    items = [{"position": at, "kind": kind, "data": item} for at, (kind, item) in enumerate(block.items)]
    produced = {"hapi_version": block.hapi_version, "produced": block.time_us, "previous_root": block.previous_root}
    return row | produced | {"items": items}


def find_root_before(headers: Iterable[Mapping[str, Any]] | None) -> bytes | None:
    """Returns the right root hash of the previous block if that block is stored under a wrong hash; else None."""
    from block_node.persist.mark import ROOT_BEFORE_HEADER

    return next((bytes(header["value"]) for header in headers or () if header["key"] == ROOT_BEFORE_HEADER), None)


def find_mark(headers: Iterable[Mapping[str, Any]] | None) -> Any:
    """Returns the `BlockMark` from the header `block/1`; None if the header is missing or unreadable, or if its numbers
    are too large for the columns. The numbers of the block node always fit."""
    import bare
    from block_node.persist.mark import MARK_HEADER, BlockMark

    for header in headers or ():
        if header["key"] == MARK_HEADER:
            try:
                mark = bare.decode(bytes(header["value"]), BlockMark)
            except bare.DecodeError:
                return None
            fits = (
                max(mark.number, mark.size_bytes) <= INT64_MAX and max(mark.part, mark.parts, mark.items) <= INT32_MAX
            )
            return mark if fits else None
    return None


@dataclass(frozen=True)
class DecodedBlock:
    """A decoded block; the values of a missing header or footer are None."""

    hapi_version: str | None
    time_us: int | None
    previous_root: bytes | None
    items: list[tuple[str, bytes]]


def read_block(data: bytes) -> DecodedBlock:
    """Decodes a serialized block. Raises BlockFormatError."""
    from block_node.blocks.items import ItemKind, item_kind, read_footer, read_header, split_block

    names = {int(kind): kind.name.lower() for kind in ItemKind}
    version = time_us = previous = None
    items = []
    for item in split_block(data):
        kind = item_kind(item)
        if kind == ItemKind.HEADER:
            header = read_header(item)
            version = ".".join(map(str, header.hapi_version))
            time_us = timestamp_us(header.timestamp)
        elif kind == ItemKind.FOOTER:
            previous = read_footer(item).previous_root
        items.append((names.get(kind) or f"item_{kind}", item))
    return DecodedBlock(version, time_us, previous, items)


def timestamp_us(serialized: bytes | None) -> int | None:
    """Returns the time in a serialized protobuf `Timestamp` (field 1: seconds, field 2: nanoseconds); None if it is
    missing, or too large for a column: publishers choose it."""
    from block_node.blocks.protobuf import read_fields

    if serialized is None:
        return None
    fields = {number: value for number, _, value in read_fields(serialized) if isinstance(value, int)}
    # Both are signed, and the wire format has the two's complement of 64 bits.
    seconds, nanos = (each - 2**64 if each > INT64_MAX else each for each in (fields.get(1, 0), fields.get(2, 0)))
    found = seconds * 1_000_000 + nanos // 1_000
    return found if abs(found) <= INT64_MAX else None
