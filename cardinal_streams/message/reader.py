"""Reads keys and values strictly, as the module `messages` draws them: one function for each prefix byte."""

from __future__ import annotations

from collections.abc import Callable

from cardinal_streams.errors import MalformedMessage, MessageError, OutOfRange, TrailingBytes, TruncatedMessage
from cardinal_streams.limits import COUNT_MAX, HASH_BYTES, NUMBER_ON_WIRE_MAX, WEIGHT_BYTES_MAX, ZERO_HASH
from cardinal_streams.message import avro_reader
from cardinal_streams.message.types import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Ping,
    Reorg,
    ReorgAbandoned,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
)

KEY_BYTES = 1 + HASH_BYTES
SUB_BATCH_KEY_BYTES = KEY_BYTES + HASH_BYTES


def _decode_batch(key: bytes, value: bytes) -> Batch:
    hash_ = _hash_of(key)
    record = avro_reader.decode_batch(value)
    number = _unsigned(record["num"], "the number", NUMBER_ON_WIRE_MAX)
    weight = record["weight"]
    if len(weight) > WEIGHT_BYTES_MAX:
        raise OutOfRange(f"the weight has {len(weight)} bytes, more than {WEIGHT_BYTES_MAX}", "value")
    values: dict[str, bytes] = {}
    deletes: list[str] = []
    counts: dict[str, int] = {}
    sub_batches: dict[str, bytes] = {}
    for name, update in record["updates"].items():
        given = 0
        if update["count"]:
            counts[name] = _unsigned(update["count"], f"the count of {name!r}", COUNT_MAX)
            given += 1
        if update["subbatch"] != ZERO_HASH:
            sub_batches[name] = update["subbatch"]
            given += 1
        if update["delete"]:
            deletes.append(name)
            given += 1
        if update["value"] or not given:
            values[name] = update["value"]
            given += 1
        if given > 1:
            raise MalformedMessage(f"the entry {name!r} sets {given} of value, count, delete and subbatch", "value")
    parent = record["parent"]
    return Batch(
        hash=hash_,
        number=number,
        parent=parent,
        weight=int.from_bytes(weight, "big"),
        values=values,
        deletes=frozenset(deletes),
        counts=counts,
        sub_batches=sub_batches,
    )


def _decode_header(key: bytes, value: bytes) -> SubBatchHeader:
    if len(key) < SUB_BATCH_KEY_BYTES:
        raise TruncatedMessage(f"the key has {len(key)} of {SUB_BATCH_KEY_BYTES} bytes", "key", len(key))
    if len(key) > SUB_BATCH_KEY_BYTES:
        raise TrailingBytes(f"{len(key) - SUB_BATCH_KEY_BYTES} bytes follow the key", "key", SUB_BATCH_KEY_BYTES)
    count = _unsigned(avro_reader.decode_varint(value), "the item count", COUNT_MAX)
    return SubBatchHeader(key[1:KEY_BYTES], _sub_batch_id(key), count)


def _decode_item(key: bytes, value: bytes) -> SubBatchMsg:
    if len(key) <= SUB_BATCH_KEY_BYTES:
        raise TruncatedMessage("the key ends before the index", "key", len(key))
    try:
        index = avro_reader.decode_varint(key[SUB_BATCH_KEY_BYTES:])
    except MessageError as error:
        raise type(error)(error.what, "key", SUB_BATCH_KEY_BYTES + error.offset) from error
    _unsigned(index, "the index", COUNT_MAX, "key", SUB_BATCH_KEY_BYTES)
    record = avro_reader.decode_sub_batch(value)
    return SubBatchMsg(key[1:KEY_BYTES], _sub_batch_id(key), index, tuple(record["delete"]), record["updates"])


def _decode_delete(key: bytes, value: bytes) -> BatchDeleteMsg:
    name = _application_key(key)
    if value:
        raise TrailingBytes(f"a delete has a value of {len(value)} bytes", "value")
    return BatchDeleteMsg(key[1:KEY_BYTES], name)


def _decoder_of(
    kind: type[Reorg] | type[ReorgComplete] | type[ReorgAbandoned],
) -> Callable[[bytes, bytes], Message]:
    """Returns the function for one of the messages that name the common ancestor of a reorg."""
    return lambda key, value: kind(
        _hash_of(key), _unsigned(avro_reader.decode_varint(value), "the number", NUMBER_ON_WIRE_MAX)
    )


def _hash_of(key: bytes) -> bytes:
    if len(key) < KEY_BYTES:
        raise TruncatedMessage(f"the key has {len(key)} of {KEY_BYTES} bytes", "key", len(key))
    if len(key) > KEY_BYTES:
        raise TrailingBytes(f"{len(key) - KEY_BYTES} bytes follow the key", "key", KEY_BYTES)
    return key[1:]


def _sub_batch_id(key: bytes) -> bytes:
    """Returns the sub batch id from a key. An id of only zeros means "no sub batch" in a Batch."""
    id_ = key[KEY_BYTES:SUB_BATCH_KEY_BYTES]
    if id_ == ZERO_HASH:
        raise MalformedMessage("the id of a sub batch is all zeros", "key", KEY_BYTES)
    return id_


def _application_key(key: bytes) -> str:
    if len(key) <= KEY_BYTES:
        raise TruncatedMessage("the key ends before the application's part", "key", len(key))
    return avro_reader.text_of(key[KEY_BYTES:])


def _unsigned(number: int, what: str, limit: int, part: str = "value", offset: int = 0) -> int:
    if not 0 <= number <= limit:
        raise OutOfRange(f"{what} is {number}, outside of 0 to {limit}", part, offset)
    return number


DECODERS: dict[int, Callable[[bytes, bytes], Message]] = {
    0x00: _decode_batch,
    0x01: _decode_header,
    0x02: _decode_item,
    0x03: lambda key, value: BatchMsg(key[1:KEY_BYTES], _application_key(key), value),
    0x04: _decode_delete,
    0x05: _decoder_of(Reorg),
    0x06: _decoder_of(ReorgComplete),
    0xFE: _decoder_of(ReorgAbandoned),
    0xFF: lambda key, value: Ping(_hash_of(key), value),
}
