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
                                                          specification (see the module `reorg_channel`)
    ff producer id(32)                   Ping             opaque; not in the specification, but the reference producer
                                                          puts one on the default topic every 30 s

The application's key can be any bytes. In Python it is a `str`: UTF-8, with each other byte as one of the characters
U+DC80 to U+DCFF (`surrogateescape`). Reading is strict: each message has one valid key. But the weight in a Batch may
have leading zeros, as the specification allows. An entry of a Batch without a value, count, delete and sub batch is
an empty value. For numbers of more than 32 bits in a Reorg, the reference producer writes a wrong number."""

from __future__ import annotations

from cardinal_streams.errors import OversizedMessage, TruncatedMessage, UnknownPrefixByte
from cardinal_streams.limits import DEFAULT_MESSAGE_LIMITS, MessageLimits
from cardinal_streams.message.reader import DECODERS
from cardinal_streams.message.types import Message, Record
from cardinal_streams.message.writer import ENCODERS


def decode(key: bytes, value: bytes, limits: MessageLimits = DEFAULT_MESSAGE_LIMITS) -> Message:
    """Reads a message. Raises `MessageError` and no other error, whatever the bytes are."""
    if len(key) > limits.key_bytes_max:
        raise OversizedMessage(f"a key of {len(key)} bytes", "key", limits.key_bytes_max)
    if len(value) > limits.value_bytes_max:
        raise OversizedMessage(f"a value of {len(value)} bytes", "value", limits.value_bytes_max)
    if not key:
        raise TruncatedMessage("the key is empty", "key")
    decoder = DECODERS.get(key[0])
    if decoder is None:
        raise UnknownPrefixByte(f"the prefix byte {key[0]:02x} names no message", "key")
    return decoder(key, value)


def encode(message: Message) -> Record:
    """Writes a message. Raises `PayloadOutOfRange` for a value that does not fit the format."""
    return ENCODERS[type(message)](message)
