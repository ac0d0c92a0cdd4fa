"""The Avro values of the message layer: the schemas of the specification (Batch, SubBatchMsg), and "int".

Bare Avro binary: no object container, no magic, no fingerprint. It does not know keys or what a value means.

Writing. Map and array blocks carry a negative count and their size in bytes, at most `BLOCK_ITEMS_MAX` items
each, as the real producer writes them; fastavro writes positive counts only, so the framing is written here.
Entries keep the order of the mapping they come from.

    record   field field …                      varint   zigzag, 7 bits a byte, least significant first
    bytes    varint(length) raw                 string   as bytes, UTF-8
    map      block … 00                         block    varint(-n) varint(size) item, n times   (written)
    array    block … 00                                  varint(n) item, n times                 (read as well)

Reading. fastavro reads, and forgives much: trailing bytes, wrong block sizes, overlong varints, repeated keys,
any byte as a boolean. So what it read is written again and must give the same bytes; only then is it taken. All
else (positive counts, other block splits, and everything wrong) goes over the bytes again with `avro_precise`,
which reads the unusual and says what is wrong where.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, cast

from fastavro import parse_schema, schemaless_reader

from cardinal_streams.message import avro_precise

BLOCK_ITEMS_MAX = 100

BATCH_SCHEMA = parse_schema(
    {
        "type": "record",
        "name": "batch",
        "avro.codec": "snappy",
        "namespace": "cloud.rivet.cardinal",
        "fields": [
            {"name": "num", "type": "long"},
            {"name": "weight", "type": "bytes"},
            {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
            {
                "name": "updates",
                "type": {
                    "name": "upd",
                    "type": "map",
                    "values": {
                        "type": "record",
                        "name": "update",
                        "fields": [
                            {"name": "value", "type": "bytes"},
                            {"name": "count", "type": "int"},
                            {"name": "delete", "type": "boolean"},
                            {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}},
                        ],
                    },
                },
            },
        ],
    }
)
SUB_BATCH_SCHEMA = parse_schema(
    {
        "type": "record",
        "name": "update",
        "fields": [
            {"name": "delete", "type": {"name": "del", "type": "array", "items": "string"}},
            {"name": "updates", "type": {"name": "upd", "type": "map", "values": "bytes"}},
        ],
    }
)


class UpdateRecord(TypedDict):
    """An entry of `BatchRecord.updates`; what is not meant is empty, 0, False or zeros."""

    value: bytes
    count: int
    delete: bool
    subbatch: bytes


class BatchRecord(TypedDict):
    """The value of a Batch message."""

    num: int
    weight: bytes
    parent: bytes
    updates: dict[str, UpdateRecord]


class SubBatchRecord(TypedDict):
    """The value of a SubBatchMsg message."""

    delete: list[str]
    updates: dict[str, bytes]


def encode_varint(value: int) -> bytes:
    """An Avro int or long. The caller has checked the range; no more than 64 bits are meaningful."""
    rest = value << 1 if value >= 0 else ~(value << 1)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encode_batch(record: BatchRecord) -> bytes:
    """The value of a Batch message."""
    weight = record["weight"]
    head = encode_varint(record["num"]) + encode_varint(len(weight)) + weight + record["parent"]
    return head + _blocks([_update_item(name, update) for name, update in record["updates"].items()])


def encode_sub_batch(record: SubBatchRecord) -> bytes:
    """The value of a SubBatchMsg message."""
    deletes = _blocks([_prefixed(name.encode()) for name in record["delete"]])
    return deletes + _blocks([_prefixed(k.encode()) + _prefixed(v) for k, v in record["updates"].items()])


def decode_batch(value: bytes) -> BatchRecord:
    """Reads the value of a Batch message. Raises `MessageError`; ranges are the caller's to check."""
    record = _read(value, BATCH_SCHEMA, encode_batch)
    if record is not None:
        return cast(BatchRecord, record)
    num, weight, parent, updates = avro_precise.read_batch(value)
    return BatchRecord(num=num, weight=weight, parent=parent, updates=cast(dict[str, UpdateRecord], updates))


def decode_sub_batch(value: bytes) -> SubBatchRecord:
    """Reads the value of a SubBatchMsg message. Raises `MessageError`."""
    record = _read(value, SUB_BATCH_SCHEMA, encode_sub_batch)
    if record is not None:
        return cast(SubBatchRecord, record)
    deletes, updates = avro_precise.read_sub_batch(value)
    return SubBatchRecord(delete=deletes, updates=updates)


def decode_varint(value: bytes) -> int:
    """Reads a value that is one Avro int or long and nothing else. Raises `MessageError`."""
    return avro_precise.read_varint_value(value)


_ONE_BYTE = tuple(bytes((n,)) for n in range(128))
_FALSE_TRUE = (b"\x00", b"\x01")


def _read(value: bytes, schema: Any, encode: Callable[[Any], bytes]) -> Any:
    """What fastavro reads, or None unless writing it again gives the very same bytes."""
    try:
        record = schemaless_reader(io.BytesIO(value), schema, None)
        return record if encode(record) == value else None
    except Exception:
        # Its readers raise whatever the broken bytes lead to (EOFError, IndexError, UnicodeDecodeError,
        # OverflowError); the precise reader finds out what was wrong and raises ours.
        return None


def _update_item(name: str, update: Mapping[str, Any]) -> bytes:
    flag = _FALSE_TRUE[update["delete"]]
    value = update["value"]
    return b"".join(
        (_prefixed(name.encode()), _prefixed(value), encode_varint(update["count"]), flag, update["subbatch"])
    )


def _prefixed(raw: bytes) -> bytes:
    size = len(raw)
    return (_ONE_BYTE[size << 1] if size < 64 else encode_varint(size)) + raw


def _blocks(items: list[bytes]) -> bytes:
    """Items in blocks of negative count and size, closed by an empty block."""
    if not items:
        return b"\x00"
    return b"".join(_framed(items)) + b"\x00"


def _framed(items: list[bytes]) -> Iterable[bytes]:
    for start in range(0, len(items), BLOCK_ITEMS_MAX):
        block = items[start : start + BLOCK_ITEMS_MAX]
        body = b"".join(block)
        yield encode_varint(-len(block)) + encode_varint(len(body)) + body
