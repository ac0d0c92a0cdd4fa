"""The protobuf wire format, as far as block items need it, read strictly. It knows no message of any schema.

    field   = tag value
    tag     = varint (number << 3 | wire type)
    value   = varint                      wire type 0
            | 8 bytes | 4 bytes           wire types 1 and 5
            | varint length, that many    wire type 2

Strict means: varints in their shortest form, at most 64 bits; nothing after the end; groups are refused. Every
serializer in use writes that form, and a reader that takes only it leaves fewer bytes that can change unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from block_node.blocks.errors import BlockFormatError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

Value = int | memoryview


def read_varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """The number at `offset` and the offset behind it."""
    value = shift = 0
    start = offset
    end = len(data)
    while True:
        if offset >= end:
            raise BlockFormatError("a number is cut short", start)
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise BlockFormatError("a number has more than 64 bits", start)
    if value > 0xFFFF_FFFF_FFFF_FFFF:
        raise BlockFormatError("a number has more than 64 bits", start)
    if byte == 0 and shift:
        raise BlockFormatError("a number is longer than it needs to be", start)
    return value, offset


def read_fields(data: bytes | memoryview) -> Iterator[tuple[int, int, Value]]:
    """Each field as (number, wire type, value); a value with a length is a view of `data`, the others are numbers."""
    view = memoryview(data)
    offset, end = 0, len(view)
    while offset < end:
        start = offset
        tag, offset = read_varint(view, offset)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise BlockFormatError(f"{number} is no field number", start)
        if wire == VARINT:
            value, offset = read_varint(view, offset)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, offset = read_varint(view, offset)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise BlockFormatError(f"wire type {wire} of field {number} is not in use", start)
        if size > end - offset:
            raise BlockFormatError(f"field {number} is {size} bytes long, {end - offset} are there", start)
        chunk = view[offset : offset + size]
        yield number, wire, chunk if wire == BYTES else int.from_bytes(chunk, "little")
        offset += size


def read_fields_once(data: bytes | memoryview, what: str) -> Iterator[tuple[int, int, Value]]:
    """As `read_fields`, for a message in which no field may be there twice."""
    seen = set()
    for field, wire, value in read_fields(data):
        if field in seen:
            raise BlockFormatError(f"{what} has field {field} twice")
        seen.add(field)
        yield field, wire, value


def number_value(wire: int, value: Value, name: str) -> int:
    """The value of a field that must be a number."""
    if wire != VARINT or not isinstance(value, int):
        raise BlockFormatError(f"{name} is not a number")
    return value


def bytes_value(wire: int, value: Value, name: str) -> memoryview:
    """The value of a field that must have a length."""
    if wire != BYTES or not isinstance(value, memoryview):
        raise BlockFormatError(f"{name} is not a field with a length")
    return value


def varint(value: int) -> bytes:
    """A number from 0 to 2**64 - 1 in its shortest form."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """A varint field; nothing for 0, which is how proto3 writes the default."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A field with a length, written also when it is empty: a message's presence is in its tag."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value
