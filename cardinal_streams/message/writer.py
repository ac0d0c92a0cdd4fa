"""Writes keys and values, as the module `messages` draws them, and checks that the format can carry them. The `check_…`
functions return their argument, or raise `PayloadOutOfRange` that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cardinal_streams.errors import PayloadOutOfRange, PrefixConflict
from cardinal_streams.limits import COUNT_MAX, HASH_BYTES, NUMBER_ON_WIRE_MAX, U64_MAX, WEIGHT_MAX, ZERO_HASH
from cardinal_streams.message import avro_writer
from cardinal_streams.message.avro_records import BatchRecord, SubBatchRecord, UpdateRecord
from cardinal_streams.message.types import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Ping,
    Record,
    Reorg,
    ReorgAbandoned,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
)


def check_hash(raw: bytes, what: str) -> bytes:
    if len(raw) != HASH_BYTES:
        raise PayloadOutOfRange(f"{what} has {len(raw)} bytes instead of {HASH_BYTES}")
    return raw


def check_number(number: int) -> int:
    """The number must be from 0 to 2^63 - 1, the largest number of an Avro long."""
    if not 0 <= number <= U64_MAX:
        raise PayloadOutOfRange(f"the number {number} is no unsigned 64-bit integer")
    if number > NUMBER_ON_WIRE_MAX:
        raise PayloadOutOfRange(f"the number {number} is above {NUMBER_ON_WIRE_MAX}, the most an Avro long carries")
    return number


def check_weight(weight: int) -> int:
    if not 0 <= weight <= WEIGHT_MAX:
        raise PayloadOutOfRange(f"the weight {weight} is no unsigned 256-bit integer")
    return weight


def check_count(count: int, what: str) -> int:
    """The count must be from 0 to 2^31 - 1, the largest number of an Avro int."""
    if not 0 <= count <= COUNT_MAX:
        raise PayloadOutOfRange(f"{what} is {count}, outside of 0 to {COUNT_MAX}")
    return count


def check_present(count: int, what: str) -> int:
    """The count must not be 0 either: a Batch entry with the count 0 would be read as an empty value."""
    if not count:
        raise PayloadOutOfRange(f"{what} is 0")
    return check_count(count, what)


def check_sub_batch_id(id_: bytes) -> bytes:
    """The id must have 32 bytes that are not all zero, which stands for "no sub batch" in a Batch message."""
    if check_hash(id_, "the id of a sub batch") == ZERO_HASH:
        raise PayloadOutOfRange("the id of a sub batch is all zeros")
    return id_


def check_key(key: str) -> str:
    """The key must not be empty, nor have a character that stands for no byte."""
    if not key:
        raise PayloadOutOfRange("a key is empty")
    try:
        avro_writer.bytes_of(key)
    except UnicodeEncodeError as error:
        raise PayloadOutOfRange(f"the key {key!r} is no text") from error
    return key


def _encode_batch(message: Batch) -> Record:
    updates: dict[str, UpdateRecord] = {}
    for name, value in message.values.items():
        updates[check_key(name)] = UpdateRecord(value=value, count=0, delete=False, subbatch=ZERO_HASH)
    for name in message.deletes:
        updates[check_key(name)] = UpdateRecord(value=b"", count=0, delete=True, subbatch=ZERO_HASH)
    for name, count in message.counts.items():
        check_present(count, f"the count of {name!r}")
        updates[check_key(name)] = UpdateRecord(value=b"", count=count, delete=False, subbatch=ZERO_HASH)
    for name, id_ in message.sub_batches.items():
        check_sub_batch_id(id_)
        updates[check_key(name)] = UpdateRecord(value=b"", count=0, delete=False, subbatch=id_)
    given = len(message.values) + len(message.deletes) + len(message.counts) + len(message.sub_batches)
    if given != len(updates):
        raise PrefixConflict("a name is in two of values, deletes, counts and sub batches")
    weight = check_weight(message.weight)
    record = BatchRecord(
        num=check_number(message.number),
        weight=weight.to_bytes((weight.bit_length() + 7) // 8, "big"),
        parent=check_hash(message.parent, "the parent"),
        updates=dict(sorted(updates.items())),
    )
    return Record(b"\x00" + check_hash(message.hash, "the hash"), avro_writer.encode_batch(record))


def _encode_header(message: SubBatchHeader) -> Record:
    count = check_count(message.item_count, "the item count")
    key = check_hash(message.hash, "the hash") + check_sub_batch_id(message.id)
    return Record(b"\x01" + key, avro_writer.encode_varint(count))


def _encode_item(message: SubBatchMsg) -> Record:
    key = check_hash(message.hash, "the hash") + check_sub_batch_id(message.id)
    index = avro_writer.encode_varint(check_count(message.index, "the index"))
    for name in (*message.deletes, *message.updates):
        check_key(name)
    record = SubBatchRecord(delete=list(message.deletes), updates=message.updates)
    return Record(b"\x02" + key + index, avro_writer.encode_sub_batch(record))


def _encode_value(message: BatchMsg) -> Record:
    return Record(
        b"\x03" + check_hash(message.hash, "the hash") + avro_writer.bytes_of(check_key(message.key)), message.value
    )


def _encode_delete(message: BatchDeleteMsg) -> Record:
    return Record(b"\x04" + check_hash(message.hash, "the hash") + avro_writer.bytes_of(check_key(message.key)), b"")


def _encoder_of(prefix: bytes) -> Callable[[Reorg | ReorgComplete | ReorgAbandoned], Record]:
    """Returns the function for one of the messages that name the common ancestor of a reorg."""
    return lambda message: Record(
        prefix + check_hash(message.hash, "the hash"), avro_writer.encode_varint(check_number(message.number))
    )


ENCODERS: dict[type[Message], Callable[[Any], Record]] = {
    Batch: _encode_batch,
    SubBatchHeader: _encode_header,
    SubBatchMsg: _encode_item,
    BatchMsg: _encode_value,
    BatchDeleteMsg: _encode_delete,
    Reorg: _encoder_of(b"\x05"),
    ReorgComplete: _encoder_of(b"\x06"),
    ReorgAbandoned: _encoder_of(b"\xfe"),
    Ping: lambda message: Record(b"\xff" + check_hash(message.producer_id, "the producer id"), message.stamp),
}
