"""Reads and writes the part of the protobuf wire format that block items need. It knows no schema.

    field   = tag value
    tag     = varint (number << 3 | wire type)
    value   = varint                      wire type 0
            | 8 bytes | 4 bytes           wire types 1 and 5
            | varint length, bytes        wire type 2

Reading is strict: varints have their shortest form and at most 64 bits, groups and truncated fields are errors. All
known serializers write this form. It leaves fewer ways to change the bytes of a message unnoticed.
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
    """Returns the number at `offset`, and the offset after it. Raises BlockFormatError."""
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
    """Yields each field as (field number, wire type, value). The value is a view of `data`, or a number. Raises
    BlockFormatError."""
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
        # A field that is cut short is an error, not a shorter value.
        if size > end - offset:
            raise BlockFormatError(f"field {number} is {size} bytes long, {end - offset} are there", start)
        chunk = view[offset : offset + size]
        yield number, wire, chunk if wire == BYTES else int.from_bytes(chunk, "little")
        offset += size


def read_fields_once(data: bytes | memoryview, what: str) -> Iterator[tuple[int, int, Value]]:
    """Yields fields as `read_fields` does. Raises BlockFormatError if a field occurs twice in the message `what`."""
    seen = set()
    for field, wire, value in read_fields(data):
        if field in seen:
            raise BlockFormatError(f"{what} has field {field} twice")
        seen.add(field)
        yield field, wire, value


def number_value(wire: int, value: Value, name: str) -> int:
    if wire != VARINT or not isinstance(value, int):
        raise BlockFormatError(f"{name} is not a number")
    return value


def bytes_value(wire: int, value: Value, name: str) -> memoryview:
    if wire != BYTES or not isinstance(value, memoryview):
        raise BlockFormatError(f"{name} is not a field with a length")
    return value


def varint(value: int) -> bytes:
    """Serializes a number from 0 to 2**64 - 1 in its shortest form."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """Serializes a varint field. Returns no bytes for the value 0, because proto3 does not write default values."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Serializes a field with a length. An empty value is written too: the tag shows that the field is present."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value
