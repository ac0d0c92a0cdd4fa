"""Writes and reads the Avro values of the message layer: Batch, SubBatchMsg and "int". All are plain Avro binary.

    record   field field …                      varint   zigzag, 7 bits a byte, least significant first
    bytes    varint(length) raw                 string   as bytes, UTF-8 or not
    map      block … 00                         block    varint(-n) varint(size) item, n times
    array    block … 00                                  varint(n) item, n times

Reading refuses forms that many Avro readers accept: varints that are longer than necessary or above 64 bits, a block
whose size is not the size of its items, booleans other than 00 and 01, repeated map keys, and bytes after the end.
Apart from its Avro blocks, a value has only one form. A length or a count in the data never reserves memory. The caller
checks ranges."""

from __future__ import annotations

from collections.abc import Container, Iterator

from cardinal_streams.errors import MalformedMessage, TrailingBytes, TruncatedMessage

BLOCK_ITEMS_MAX = 100
_ONE_BYTE = tuple(bytes((n,)) for n in range(128))


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
    return key.encode("utf-8", "surrogateescape")


def prefixed(raw: bytes) -> bytes:
    size = len(raw)
    return (_ONE_BYTE[size << 1] if size < 64 else encode_varint(size)) + raw


def blocks(items: list[bytes]) -> bytes:
    if not items:
        return b"\x00"
    out = bytearray()
    # The reference producer writes blocks of this size, each with a negative count and its size in bytes. Avro
    # libraries write only positive counts.
    for start in range(0, len(items), BLOCK_ITEMS_MAX):
        block = items[start : start + BLOCK_ITEMS_MAX]
        body = b"".join(block)
        out += encode_varint(-len(block)) + encode_varint(len(body)) + body
    return bytes(out) + b"\x00"


PART = "value"
# The longest varint, in bytes: 64 bits in groups of 7.
VARINT_BYTES_MAX = 10


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


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

    def read_new_key(self, known: Container[str]) -> str:
        start = self.offset
        name = self.read_string("a map key")
        if name in known:
            raise MalformedMessage(f"the map key {name!r} is repeated", PART, start)
        return name

    def items(self) -> Iterator[None]:
        """Yields at the beginning of each item of a map or an array; the caller then reads the item. The items are in
        blocks, the last of which is empty."""
        start = self.offset
        while count := self.read_varint():
            end = None
            if count < 0:
                count, size = -count, self.read_varint()
                if size < 0:
                    raise MalformedMessage(f"a block has the negative size {size}", PART, start)
                end = self.offset + size
            for _ in range(count):
                yield
            if end is not None and self.offset != end:
                raise MalformedMessage(f"a block should end at byte {end}", PART, self.offset)
            start = self.offset

    def end_value(self) -> None:
        left = len(self.data) - self.offset
        if left:
            raise TrailingBytes(f"{left} bytes follow the value", PART, self.offset)


def decode_varint(value: bytes) -> int:
    cursor = AvroCursor(value)
    number = cursor.read_varint()
    cursor.end_value()
    return number
