"""Writes the Avro values of the message layer: Batch, SubBatchMsg and "int"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cardinal_streams.message.avro_records import BatchRecord, SubBatchRecord

BLOCK_ITEMS_MAX = 100
_ONE_BYTE = tuple(bytes((n,)) for n in range(128))
_FALSE_TRUE = (b"\x00", b"\x01")


def encode_varint(value: int) -> bytes:
    """Writes an Avro int or long. The caller must have checked that the value fits 64 bits."""
    rest = value << 1 if value >= 0 else ~(value << 1)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def bytes_of(key: str) -> bytes:
    """Returns the bytes of an application's key. Raises UnicodeEncodeError for a text that stands for no bytes."""
    return key.encode(errors="surrogateescape")


def encode_batch(record: BatchRecord) -> bytes:
    weight = record["weight"]
    head = encode_varint(record["num"]) + encode_varint(len(weight)) + weight + record["parent"]
    return head + _blocks([_update_item(name, update) for name, update in record["updates"].items()])


def encode_sub_batch(record: SubBatchRecord) -> bytes:
    deletes = _blocks([_prefixed(bytes_of(name)) for name in record["delete"]])
    return deletes + _blocks([_prefixed(bytes_of(k)) + _prefixed(v) for k, v in record["updates"].items()])


def _update_item(name: str, update: Mapping[str, Any]) -> bytes:
    flag = _FALSE_TRUE[update["delete"]]
    value = update["value"]
    return b"".join(
        (_prefixed(bytes_of(name)), _prefixed(value), encode_varint(update["count"]), flag, update["subbatch"])
    )


def _prefixed(raw: bytes) -> bytes:
    size = len(raw)
    return (_ONE_BYTE[size << 1] if size < 64 else encode_varint(size)) + raw


def _blocks(items: list[bytes]) -> bytes:
    if not items:
        return b"\x00"
    return b"".join(_framed(items)) + b"\x00"


def _framed(items: list[bytes]) -> Iterable[bytes]:
    # The reference producer writes blocks of this size, each with a negative count and its size in bytes. Avro
    # libraries write only positive counts.
    for start in range(0, len(items), BLOCK_ITEMS_MAX):
        block = items[start : start + BLOCK_ITEMS_MAX]
        body = b"".join(block)
        yield encode_varint(-len(block)) + encode_varint(len(body)) + body
