"""Converts the messages of Cardinal Streams to and from the bytes of a key and a value. Specification: "Messages".

A key begins with a prefix byte, and its fields follow without separators:

    00 hash(32)                          Batch            Avro record "batch"
    01 hash(32) id(32)                   SubBatchHeader   Avro int: item count
    02 hash(32) id(32) Avro int: index   SubBatchMsg      Avro record "update"
    03 hash(32) key                      BatchMsg         raw bytes of the application, can be empty
    04 hash(32) key                      BatchDeleteMsg   empty
    05 hash(32)                          Reorg            Avro long: number of the common ancestor
    06 hash(32)                          ReorgComplete    Avro long: number of the common ancestor
    fe hash(32)                          ReorgAbandoned   Avro long: number of the common ancestor; not in the
                                                          specification (see `producer.ReorgChannel`)
    ff producer id(32)                   Ping             opaque; not in the specification, but the reference producer
                                                          puts one on the default topic every 30 s

The application's key can be any bytes. In Python it is a `str`: UTF-8, with each other byte as one of the characters
U+DC80 to U+DCFF (`surrogateescape`). Reading is strict: each message has one valid key. But the weight in a Batch may
have leading zeros, as the specification allows. An entry of a Batch without a value, count, delete and sub batch is
an empty value. For numbers of more than 32 bits in a Reorg, the reference producer writes a wrong number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cardinal_streams import errors
from cardinal_streams.limits import (
    COUNT_MAX,
    DEFAULT_MESSAGE_LIMITS,
    HASH_BYTES,
    NUMBER_ON_WIRE_MAX,
    U64_MAX,
    WEIGHT_BYTES_MAX,
    WEIGHT_MAX,
    ZERO_HASH,
    MessageLimits,
)
from cardinal_streams.message import avro


class Record(NamedTuple):
    """A message as a transport carries it: the bytes of its key and of its value."""

    key: bytes
    value: bytes


class Batch(msgspec.Struct, frozen=True):
    """A message that lists the contents of a block. Its last four fields are the `updates` of the specification; no
    name is in two of them.

    `values`, `deletes`: the values by key, and the deleted keys.
    `counts`: by prefix, the number of BatchMsg and BatchDeleteMsg messages.
    `sub_batches`: by path, the id of a sub batch."""

    hash: bytes
    number: int
    parent: bytes
    weight: int
    values: dict[str, bytes] = {}
    deletes: frozenset[str] = frozenset()
    counts: dict[str, int] = {}
    sub_batches: dict[str, bytes] = {}


class SubBatchHeader(msgspec.Struct, frozen=True, gc=False):
    """A message with the size of a sub batch of a block: it has `item_count` items, with indexes from 0."""

    hash: bytes
    id: bytes
    item_count: int


class SubBatchMsg(msgspec.Struct, frozen=True):
    """A message with item `index` of a sub batch: the keys that the item deletes, and the values that it sets."""

    hash: bytes
    id: bytes
    index: int
    deletes: tuple[str, ...] = ()
    updates: dict[str, bytes] = {}


class BatchMsg(msgspec.Struct, frozen=True, gc=False):
    """A message that sets `key` to `value` in the block with this hash."""

    hash: bytes
    key: str
    value: bytes


class BatchDeleteMsg(msgspec.Struct, frozen=True, gc=False):
    """A message that deletes `key` in the block with this hash."""

    hash: bytes
    key: str


class Reorg(msgspec.Struct, frozen=True, gc=False):
    """A message that begins a reorg beyond the threshold. `hash` and `number` are those of the common ancestor."""

    hash: bytes
    number: int


class ReorgComplete(msgspec.Struct, frozen=True, gc=False):
    """The last message of a complete section of a reorg channel (the topic of one reorg), with the hash and number of
    the common ancestor. Consumers do not compare them."""

    hash: bytes
    number: int


class ReorgAbandoned(msgspec.Struct, frozen=True, gc=False):
    """The last message of a section whose producer gives the reorg up, with the hash and number of the common ancestor.
    The specification has no such message; other consumers drop it."""

    hash: bytes
    number: int


class Ping(msgspec.Struct, frozen=True, gc=False):
    """A message that shows that a producer is alive. `stamp`: the time in the producer's own format."""

    producer_id: bytes
    stamp: bytes


BlockMessage: TypeAlias = Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg
Message: TypeAlias = BlockMessage | Reorg | ReorgComplete | ReorgAbandoned | Ping
OF_REORGS = (b"\x05", b"\x06", b"\xfe")
"""The first bytes of the keys of Reorg, ReorgComplete and ReorgAbandoned."""


KEY_BYTES = 1 + HASH_BYTES
SUB_BATCH_KEY_BYTES = KEY_BYTES + HASH_BYTES


# {"type": "record", "name": "batch", "avro.codec": "snappy", "namespace": "cloud.rivet.cardinal", "fields": [
#   {"name": "num", "type": "long"},
#   {"name": "weight", "type": "bytes"},
#   {"name": "parent", "type": {"name": "par", "type": "fixed", "size": 32}},
#   {"name": "updates", "type": {"name": "upd", "type": "map", "values":
#     {"type": "record", "name": "update", "fields": [
#       {"name": "value", "type": "bytes"},
#       {"name": "count", "type": "int"},
#       {"name": "delete", "type": "boolean"},
#       {"name": "subbatch", "type": {"name": "subb", "type": "fixed", "size": 32}}]}}}]}
def _decode_batch(key: bytes, value: bytes) -> Batch:
    hash_ = _hash_of(key)
    cursor = avro.AvroCursor(value)
    number = cursor.read_varint()
    weight = cursor.read_bytes("the weight")
    parent = cursor.read_exactly(HASH_BYTES, "the parent")
    names: set[str] = set()
    values: dict[str, bytes] = {}
    deletes: list[str] = []
    counts: dict[str, int] = {}
    sub_batches: dict[str, bytes] = {}
    for _ in cursor.items():
        name = cursor.read_new_key(names)
        names.add(name)
        contents = cursor.read_bytes("a value")
        start = cursor.offset
        count = cursor.read_varint()
        if not -(1 << 31) <= count < 1 << 31:
            raise errors.OutOfRange(f"the count {count} is no 32-bit integer", "value", start)
        flag = cursor.read_exactly(1, "a delete flag")[0]
        if flag > 1:
            what = f"a delete flag is the byte {flag:02x}, neither 00 nor 01"
            raise errors.MalformedMessage(what, "value", cursor.offset - 1)
        id_ = cursor.read_exactly(HASH_BYTES, "a sub batch id")
        # At most one of the four fields is set.
        if count:
            counts[name] = _unsigned(count, f"the count of {name!r}", COUNT_MAX)
        elif flag:
            deletes.append(name)
        elif id_ != ZERO_HASH:
            sub_batches[name] = id_
        else:
            values[name] = contents
        given = (count != 0) + (id_ != ZERO_HASH) + flag + (contents != b"")
        if given > 1:
            what = f"the entry {name!r} sets {given} of value, count, delete and subbatch"
            raise errors.MalformedMessage(what, "value")
    cursor.end_value()
    _unsigned(number, "the number", NUMBER_ON_WIRE_MAX)
    if len(weight) > WEIGHT_BYTES_MAX:
        raise errors.OutOfRange(f"the weight has {len(weight)} bytes, more than {WEIGHT_BYTES_MAX}", "value")
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
        raise errors.TruncatedMessage(f"the key has {len(key)} of {SUB_BATCH_KEY_BYTES} bytes", "key", len(key))
    if len(key) > SUB_BATCH_KEY_BYTES:
        raise errors.TrailingBytes(f"{len(key) - SUB_BATCH_KEY_BYTES} bytes follow the key", "key", SUB_BATCH_KEY_BYTES)
    count = _unsigned(avro.decode_varint(value), "the item count", COUNT_MAX)
    return SubBatchHeader(key[1:KEY_BYTES], _sub_batch_id(key), count)


# {"type": "record", "name": "update", "fields": [
#   {"name": "delete", "type": {"name": "del", "type": "array", "items": "string"}},
#   {"name": "updates", "type": {"name": "upd", "type": "map", "values": "bytes"}}]}
def _decode_item(key: bytes, value: bytes) -> SubBatchMsg:
    if len(key) <= SUB_BATCH_KEY_BYTES:
        raise errors.TruncatedMessage("the key ends before the index", "key", len(key))
    try:
        index = avro.decode_varint(key[SUB_BATCH_KEY_BYTES:])
    except errors.MessageError as error:
        raise type(error)(error.what, "key", SUB_BATCH_KEY_BYTES + error.offset) from error
    _unsigned(index, "the index", COUNT_MAX, "key", SUB_BATCH_KEY_BYTES)
    cursor = avro.AvroCursor(value)
    deletes = tuple([cursor.read_string("a delete") for _ in cursor.items()])
    updates: dict[str, bytes] = {}
    for _ in cursor.items():
        name = cursor.read_new_key(updates)
        updates[name] = cursor.read_bytes("an update")
    cursor.end_value()
    return SubBatchMsg(key[1:KEY_BYTES], _sub_batch_id(key), index, deletes, updates)


def _decode_delete(key: bytes, value: bytes) -> BatchDeleteMsg:
    name = _application_key(key)
    if value:
        raise errors.TrailingBytes(f"a delete has a value of {len(value)} bytes", "value")
    return BatchDeleteMsg(key[1:KEY_BYTES], name)


def _decoder_of(
    kind: type[Reorg] | type[ReorgComplete] | type[ReorgAbandoned],
) -> Callable[[bytes, bytes], Message]:
    """Returns the function that decodes messages of this type, which name the common ancestor of a reorg."""
    return lambda key, value: kind(
        _hash_of(key), _unsigned(avro.decode_varint(value), "the number", NUMBER_ON_WIRE_MAX)
    )


def _hash_of(key: bytes) -> bytes:
    if len(key) < KEY_BYTES:
        raise errors.TruncatedMessage(f"the key has {len(key)} of {KEY_BYTES} bytes", "key", len(key))
    if len(key) > KEY_BYTES:
        raise errors.TrailingBytes(f"{len(key) - KEY_BYTES} bytes follow the key", "key", KEY_BYTES)
    return key[1:]


def _sub_batch_id(key: bytes) -> bytes:
    """Returns the sub batch id from a key. An id of only zeros means "no sub batch" in a Batch."""
    id_ = key[KEY_BYTES:SUB_BATCH_KEY_BYTES]
    if id_ == ZERO_HASH:
        raise errors.MalformedMessage("the id of a sub batch is all zeros", "key", KEY_BYTES)
    return id_


def _application_key(key: bytes) -> str:
    if len(key) <= KEY_BYTES:
        raise errors.TruncatedMessage("the key ends before the application's part", "key", len(key))
    return key[KEY_BYTES:].decode("utf-8", "surrogateescape")


def _unsigned(number: int, what: str, limit: int, part: str = "value", offset: int = 0) -> int:
    if not 0 <= number <= limit:
        raise errors.OutOfRange(f"{what} is {number}, outside of 0 to {limit}", part, offset)
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


def check_hash(raw: bytes, what: str) -> bytes:
    if len(raw) != HASH_BYTES:
        raise errors.PayloadOutOfRange(f"{what} has {len(raw)} bytes instead of {HASH_BYTES}")
    return raw


def check_number(number: int) -> int:
    """Returns a number from 0 to 2^63 - 1, the largest number of an Avro long. Refuses any other number."""
    if not 0 <= number <= U64_MAX:
        raise errors.PayloadOutOfRange(f"the number {number} is no unsigned 64-bit integer")
    if number > NUMBER_ON_WIRE_MAX:
        raise errors.PayloadOutOfRange(
            f"the number {number} is above {NUMBER_ON_WIRE_MAX}, the most an Avro long carries"
        )
    return number


def check_weight(weight: int) -> int:
    if not 0 <= weight <= WEIGHT_MAX:
        raise errors.PayloadOutOfRange(f"the weight {weight} is no unsigned 256-bit integer")
    return weight


def check_count(count: int, what: str) -> int:
    """Returns a count from 0 to 2^31 - 1, the largest number of an Avro int. Refuses any other count."""
    if not 0 <= count <= COUNT_MAX:
        raise errors.PayloadOutOfRange(f"{what} is {count}, outside of 0 to {COUNT_MAX}")
    return count


def check_sub_batch_id(id_: bytes) -> bytes:
    """Returns an id of 32 bytes. Refuses 32 zero bytes, which stand for "no sub batch" in a Batch message."""
    if check_hash(id_, "the id of a sub batch") == ZERO_HASH:
        raise errors.PayloadOutOfRange("the id of a sub batch is all zeros")
    return id_


def check_key(key: str) -> str:
    """Returns a key. Refuses an empty key, and a key with a character that stands for no byte."""
    _key_bytes(key)
    return key


def _key_bytes(key: str) -> bytes:
    if not key:
        raise errors.PayloadOutOfRange("a key is empty")
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise errors.PayloadOutOfRange(f"the key {key!r} is no text") from error


def _entry(name: str, value: bytes = b"", count: int = 0, flag: bytes = b"\0", id_: bytes = ZERO_HASH) -> bytes:
    """Returns an entry of the map "updates" of a Batch. At most one of its fields is set."""
    key = avro.prefixed(_key_bytes(name))
    return b"".join((key, avro.prefixed(value), avro.encode_varint(count), flag, id_))


def _encode_batch(message: Batch) -> Record:
    updates = {name: _entry(name, value) for name, value in message.values.items()}
    updates |= {name: _entry(name, flag=b"\1") for name in message.deletes}
    for name, count in message.counts.items():
        # A count of 0 would be read as an empty value.
        if not count:
            raise errors.PayloadOutOfRange(f"the count of {name!r} is 0")
        updates[name] = _entry(name, count=check_count(count, f"the count of {name!r}"))
    updates |= {name: _entry(name, id_=check_sub_batch_id(id_)) for name, id_ in message.sub_batches.items()}
    given = len(message.values) + len(message.deletes) + len(message.counts) + len(message.sub_batches)
    if given != len(updates):
        raise errors.PrefixConflict("a name is in two of values, deletes, counts and sub batches")
    weight = check_weight(message.weight).to_bytes((message.weight.bit_length() + 7) // 8, "big")
    number = avro.encode_varint(check_number(message.number))
    head = number + avro.prefixed(weight) + check_hash(message.parent, "the parent")
    value = head + avro.blocks([updates[name] for name in sorted(updates)])
    return Record(b"\x00" + check_hash(message.hash, "the hash"), value)


def _encode_header(message: SubBatchHeader) -> Record:
    count = check_count(message.item_count, "the item count")
    key = check_hash(message.hash, "the hash") + check_sub_batch_id(message.id)
    return Record(b"\x01" + key, avro.encode_varint(count))


def _encode_item(message: SubBatchMsg) -> Record:
    key = check_hash(message.hash, "the hash") + check_sub_batch_id(message.id)
    index = avro.encode_varint(check_count(message.index, "the index"))
    deletes = [avro.prefixed(_key_bytes(name)) for name in message.deletes]
    updates = [avro.prefixed(_key_bytes(name)) + avro.prefixed(value) for name, value in message.updates.items()]
    return Record(b"\x02" + key + index, avro.blocks(deletes) + avro.blocks(updates))


def _encode_value(message: BatchMsg) -> Record:
    return Record(b"\x03" + check_hash(message.hash, "the hash") + _key_bytes(message.key), message.value)


def _encode_delete(message: BatchDeleteMsg) -> Record:
    return Record(b"\x04" + check_hash(message.hash, "the hash") + _key_bytes(message.key), b"")


def _encoder_of(prefix: bytes) -> Callable[[Reorg | ReorgComplete | ReorgAbandoned], Record]:
    """Returns the function that encodes messages with this first byte, which name the common ancestor of a reorg."""
    return lambda message: Record(
        prefix + check_hash(message.hash, "the hash"), avro.encode_varint(check_number(message.number))
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


def decode(key: bytes, value: bytes, limits: MessageLimits = DEFAULT_MESSAGE_LIMITS) -> Message:
    """Reads a message. Raises `MessageError` and no other error, whatever the bytes are."""
    if len(key) > limits.key_bytes_max:
        raise errors.OversizedMessage(f"a key of {len(key)} bytes", "key", limits.key_bytes_max)
    if len(value) > limits.value_bytes_max:
        raise errors.OversizedMessage(f"a value of {len(value)} bytes", "value", limits.value_bytes_max)
    if not key:
        raise errors.TruncatedMessage("the key is empty", "key")
    decoder = DECODERS.get(key[0])
    if decoder is None:
        raise errors.UnknownPrefixByte(f"the prefix byte {key[0]:02x} names no message", "key")
    return decoder(key, value)


def encode(message: Message) -> Record:
    """Writes a message. Raises `PayloadOutOfRange` for a value that does not fit the format."""
    return ENCODERS[type(message)](message)
