"""Decodes the messages that have columns of their own: blocks of the block node, and Cardinal Streams.

A block of more than one MiB is stored as several messages (`block_node.persist.mark`), which cut items in two. So this
module decodes the items of one-message blocks only; `pipeline.silver` joins the messages of larger blocks. The
block node verifies each block before storing it, so no root is verified here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from spark_export.decode.decoding import MessageDecoder
from spark_export.decode.times import INT32_MAX, INT64_MAX
from spark_export.errors import OptionError

ITEM = pa.struct(
    [pa.field(*each, False) for each in (("position", pa.int32()), ("kind", pa.string()), ("data", pa.binary()))]
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

part: the number of this message within the block, from 0. parts: the number of messages of the block.
item_count, block_bytes: the number of items and the size of the whole block.
block_root: the most likely root hash when the block was stored; the `previous_root` of the next block is the right one.
hapi_version, produced, previous_root, items (each serialized): null if the block has several messages.
problem: why the message cannot be decoded, or null.
"""
CARDINAL = pa.schema(
    {
        "kind": pa.string(),
        "block_hash": pa.binary(),
        "block_number": pa.int64(),
        "parent_hash": pa.binary(),
        "weight": pa.string(),
        "path": pa.string(),
        "value": pa.binary(),
        "sub_batch_id": pa.binary(),
        "item_index": pa.int32(),
        "item_count": pa.int32(),
        "values": pa.map_(pa.string(), pa.field("value", pa.binary(), False)),
        "deletes": pa.list_(pa.field("element", pa.string(), False)),
        "counts": pa.map_(pa.string(), pa.field("value", pa.int32(), False)),
        "sub_batches": pa.map_(pa.string(), pa.field("value", pa.binary(), False)),
        "problem": pa.string(),
    }
)
"""The columns of the option `decode=cardinal`. Each row describes one message of Cardinal Streams.

kind: a value of KINDS. weight: a number of up to 256 bits, in decimal digits.
problem: why the message cannot be decoded, so that the other columns are null; else null.
"""
KINDS = {
    **{"Batch": "batch", "SubBatchHeader": "header", "SubBatchMsg": "item", "BatchMsg": "value"},
    **{"BatchDeleteMsg": "delete", "Reorg": "reorg", "ReorgComplete": "reorg_complete"},
    **{"ReorgAbandoned": "reorg_abandoned", "Ping": "ping"},
}


class OwnDecoder(MessageDecoder):
    """A decoder of the kind `block` or `cardinal`. Raises OptionError for a column that is not one of the kind's."""

    def __init__(self, kind: str, fields: Iterable[pa.Field] | None) -> None:
        own = BLOCK if kind == "block" else CARDINAL
        super().__init__(own if fields is None else fields)
        for field in self.fields:
            if field.name not in own.names:
                raise OptionError(f"decode={kind} has no column {field.name!r}; there are {', '.join(own.names)}")
            if field.type != own.field(field.name).type:
                raise OptionError(f"the column {field.name!r} is {own.field(field.name).type}; ask for it as that")
        self.needs_headers = kind == "block"
        self._kind = kind

    def arrays(self, keys: pa.Array, data: pa.Array, headers: pa.Array | None) -> list[pa.Array]:
        names = {field.name for field in self.fields}
        with_items = not names.isdisjoint(("hapi_version", "produced", "previous_root", "items", "problem"))
        messages = data.to_pylist()
        try:
            # One row for each message, by column name. A column that is absent is null.
            if self.needs_headers:
                assert headers is not None, "asked for by `needs_headers`"
                rows = [block_row(*each, with_items) for each in zip(headers.to_pylist(), messages, strict=True)]
            else:
                rows = cardinal_rows(keys.to_pylist(), messages)
        except ImportError as error:
            raise OptionError(f"decode={self._kind} needs stream-node installed on every worker") from error
        return [pa.array([row.get(field.name) for row in rows], field.type) for field in self.fields]


def block_row(headers: Iterable[Mapping[str, Any]] | None, data: bytes, with_items: bool) -> dict[str, Any]:
    from block_node.blocks.errors import BlockFormatError

    mark = find_mark(headers)
    if mark is None:
        return {"problem": "no header `block/1` that can be read: this is no message of the block node"}
    row = {"block_number": mark.number, "part": mark.part, "parts": mark.parts}
    row |= {"item_count": mark.items, "block_bytes": mark.size_bytes, "block_root": mark.root}
    if not with_items or mark.parts != 1:
        return row
    try:
        version, time_us, previous, found = read_block(data)
    except BlockFormatError as error:
        return row | {"problem": str(error)}
    items = [{"position": at, "kind": kind, "data": item} for at, (kind, item) in enumerate(found)]
    return row | {"hapi_version": version, "produced": time_us, "previous_root": previous, "items": items}


def find_root_before(headers: Iterable[Mapping[str, Any]] | None) -> bytes | None:
    """Returns the right root hash of the previous block if that block is stored under a wrong hash; else None."""
    from block_node.persist.mark import ROOT_BEFORE_HEADER

    return next((bytes(header["value"]) for header in headers or () if header["key"] == ROOT_BEFORE_HEADER), None)


def find_mark(headers: Iterable[Mapping[str, Any]] | None) -> Any:
    """Returns the `BlockMark` from the header `block/1`; None if there is no such header, or its numbers do not fit the
    columns."""
    import bare
    from block_node.persist.mark import MARK_HEADER, BlockMark

    for header in headers or ():
        if header["key"] == MARK_HEADER:
            try:
                mark = bare.decode(bytes(header["value"]), BlockMark)
            except bare.DecodeError:
                return None
            large, small = max(mark.number, mark.size_bytes), max(mark.part, mark.parts, mark.items)
            return mark if large <= INT64_MAX and small <= INT32_MAX else None
    return None


def read_block(data: bytes) -> tuple[str | None, int | None, bytes | None, list[tuple[str, bytes]]]:
    """Decodes a serialized block into the API version, time (µs after 1970) and previous root, None where missing, and
    the kind and bytes of each item. Raises BlockFormatError."""
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
    return version, time_us, previous, items


def timestamp_us(serialized: bytes | None) -> int | None:
    """Returns the time in a serialized protobuf `Timestamp`; None if it is missing, or too large for a column."""
    from block_node.blocks.protobuf import read_fields

    if serialized is None:
        return None
    fields = {number: value for number, _, value in read_fields(serialized) if isinstance(value, int)}
    # Field 1 has the seconds and field 2 the nanoseconds. Both are signed: the two's complement of 64 bits.
    seconds, nanos = (each - 2**64 if each > INT64_MAX else each for each in (fields.get(1, 0), fields.get(2, 0)))
    found = seconds * 1_000_000 + nanos // 1_000
    return found if abs(found) <= INT64_MAX else None


def cardinal_rows(keys: Iterable[bytes | None], data: Iterable[bytes]) -> list[dict[str, Any]]:
    from cardinal_streams.errors import MessageError
    from cardinal_streams.message.messages import decode

    rows = []
    for key, value in zip(keys, data, strict=True):
        try:
            rows.append(_cardinal_row(decode(key or b"", value)))
        except MessageError as error:
            rows.append({"problem": str(error)})
    return rows


def _cardinal_row(message: Any) -> dict[str, Any]:
    kind = KINDS[type(message).__name__]
    row: dict[str, Any] = {"kind": kind, "block_hash": getattr(message, "hash", None)}
    if kind in ("batch", "reorg", "reorg_complete", "reorg_abandoned"):
        row["block_number"] = message.number
    if kind == "batch":
        row |= {"parent_hash": message.parent, "weight": str(message.weight)}
        row |= {"values": _named(message.values), "deletes": [*map(_key_text, sorted(message.deletes))]}
        row |= {"counts": _named(message.counts), "sub_batches": _named(message.sub_batches)}
    elif kind in ("value", "delete"):
        row |= {"path": _key_text(message.key), "value": getattr(message, "value", None)}
    elif kind == "header":
        row |= {"sub_batch_id": message.id, "item_count": message.item_count}
    elif kind == "item":
        row |= {"sub_batch_id": message.id, "item_index": message.index}
        row |= {"values": _named(message.updates), "deletes": [*map(_key_text, message.deletes)]}
    return row


def _key_text(key: str) -> str:
    """Returns an application's key for a column. Bytes that are not UTF-8 (surrogates in `key`) become U+FFFD."""
    return key.encode(errors="surrogateescape").decode(errors="replace")


def _named(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(_key_text(key), value) for key, value in values.items()]
