"""Reads the Avro values of the message layer strictly: Batch, SubBatchMsg and "int". The caller checks ranges.

It refuses forms that many Avro readers accept: varints that are longer than necessary or above 64 bits, a block whose
size is not the size of its items, booleans other than 00 and 01, repeated map keys, and bytes after the end. Apart from
its Avro blocks, a value therefore has only one form. A length or a count in the data never reserves memory."""

from __future__ import annotations

from collections.abc import Container

from cardinal_streams.errors import MalformedMessage, OutOfRange, TrailingBytes, TruncatedMessage
from cardinal_streams.limits import HASH_BYTES
from cardinal_streams.message.avro_records import BatchRecord, SubBatchRecord, UpdateRecord

PART = "value"
# The longest varint, in bytes: 64 bits in groups of 7.
VARINT_BYTES_MAX = 10


def text_of(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


class AvroCursor:
    """A reading position in a value, which every `read_…` method moves, but never beyond the end of the value."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self.data = data
        self.offset = offset

    def read_varint(self) -> int:
        """Reads an Avro int or long. Its form must be the shortest one, and it must fit 64 bits."""
        start = at = self.offset
        raw = shift = 0
        while True:
            if at >= len(self.data):
                raise TruncatedMessage("a varint is cut off", PART, start)
            byte = self.data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if at - start >= VARINT_BYTES_MAX:
                raise MalformedMessage("a varint is longer than 64 bits", PART, start)
        if byte == 0 and at - start > 1:
            raise MalformedMessage("a varint is longer than it needs to be", PART, start)
        if raw >> 64:
            raise MalformedMessage("a varint is longer than 64 bits", PART, start)
        self.offset = at
        return (raw >> 1) ^ -(raw & 1)

    def read_exactly(self, size: int, what: str) -> bytes:
        end = self.offset + size
        if end > len(self.data):
            have = len(self.data) - self.offset
            raise TruncatedMessage(f"{what} has {size} bytes, and {have} are left", PART, self.offset)
        raw = self.data[self.offset : end]
        self.offset = end
        return raw

    def read_bytes(self, what: str) -> bytes:
        start = self.offset
        size = self.read_varint()
        if size < 0:
            raise MalformedMessage(f"{what} has the negative length {size}", PART, start)
        return self.read_exactly(size, what)

    def read_string(self, what: str) -> str:
        return text_of(self.read_bytes(what))

    def read_boolean(self, what: str) -> bool:
        byte = self.read_exactly(1, what)[0]
        if byte > 1:
            raise MalformedMessage(f"{what} is the byte {byte:02x}, neither 00 nor 01", PART, self.offset - 1)
        return byte == 1

    def read_block(self) -> tuple[int, int | None]:
        start = self.offset
        count = self.read_varint()
        if count >= 0:
            return count, None
        size = self.read_varint()
        if size < 0:
            raise MalformedMessage(f"a block has the negative size {size}", PART, start)
        return -count, self.offset + size

    def end_block(self, end: int | None) -> None:
        if end is not None and self.offset != end:
            raise MalformedMessage(f"a block should end at byte {end}", PART, self.offset)

    def end_value(self) -> None:
        left = len(self.data) - self.offset
        if left:
            raise TrailingBytes(f"{left} bytes follow the value", PART, self.offset)


def decode_batch(value: bytes) -> BatchRecord:
    """Reads the value of a Batch message. Raises `MessageError`. The caller must check the ranges of the numbers."""
    cursor = AvroCursor(value)
    number = cursor.read_varint()
    weight = cursor.read_bytes("the weight")
    parent = cursor.read_exactly(HASH_BYTES, "the parent")
    updates: dict[str, UpdateRecord] = {}
    while True:
        # A map is any number of blocks, the last of which is empty.
        count, end = cursor.read_block()
        if count == 0:
            break
        for _ in range(count):
            name = _new_key(cursor, updates)
            updates[name] = _read_update(cursor)
        cursor.end_block(end)
    cursor.end_value()
    return BatchRecord(num=number, weight=weight, parent=parent, updates=updates)


def decode_sub_batch(value: bytes) -> SubBatchRecord:
    cursor = AvroCursor(value)
    deletes: list[str] = []
    while True:
        # The array of deletes, then the map of updates.
        count, end = cursor.read_block()
        if count == 0:
            break
        for _ in range(count):
            deletes.append(cursor.read_string("a delete"))
        cursor.end_block(end)
    updates: dict[str, bytes] = {}
    while True:
        count, end = cursor.read_block()
        if count == 0:
            break
        for _ in range(count):
            name = _new_key(cursor, updates)
            updates[name] = cursor.read_bytes("an update")
        cursor.end_block(end)
    cursor.end_value()
    return SubBatchRecord(delete=deletes, updates=updates)


def decode_varint(value: bytes) -> int:
    cursor = AvroCursor(value)
    number = cursor.read_varint()
    cursor.end_value()
    return number


def _read_update(cursor: AvroCursor) -> UpdateRecord:
    value = cursor.read_bytes("a value")
    start = cursor.offset
    count = cursor.read_varint()
    if not -(1 << 31) <= count < 1 << 31:
        raise OutOfRange(f"the count {count} is no 32-bit integer", PART, start)
    delete = cursor.read_boolean("a delete flag")
    return {
        "value": value,
        "count": count,
        "delete": delete,
        "subbatch": cursor.read_exactly(HASH_BYTES, "a sub batch id"),
    }


def _new_key(cursor: AvroCursor, known: Container[str]) -> str:
    start = cursor.offset
    name = cursor.read_string("a map key")
    if name in known:
        raise MalformedMessage(f"the map key {name!r} is repeated", PART, start)
    return name
