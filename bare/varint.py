"""Encodes and decodes numbers of variable length.

Compiled codecs handle the shortest numbers themselves, and call these functions for all other numbers.

    1xxxxxxx 1xxxxxxx ... 0xxxxxxx      seven bits each, least significant first (section 2 of the draft)

A number has at most 64 bits, so at most ten bytes, and the tenth byte has one bit of the number. Only the shortest form
is valid: if a number has several bytes, the last byte is not zero. An int is first mapped to a uint by the zigzag
mapping: 0, -1, 1, -2 are sent as 0, 1, 2, 3."""

from __future__ import annotations

from bare.errors import Irregular
from bare.model import UINT_MAX

VARINT_BYTES_MAX = 10

# For each group of seven bits (0 to 127), its encoding as the last byte of a number, and as a byte before another byte.
ONE_BYTE = tuple(bytes((value,)) for value in range(128))
FIRST_BYTE = tuple(bytes((value | 128,)) for value in range(128))


def long_uint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the number at the offset `at`, whose first byte is over 127. Returns the number and the offset after it.

    Raises Irregular for a longer form than necessary or over 64 bits, and IndexError if bytes are missing."""
    # Nearly all long numbers have two or three bytes. These are decoded without a loop.
    first = data[at] & 127
    second = data[at + 1]
    if second < 128:
        if not second:
            raise Irregular
        return first | second << 7, at + 2
    third = data[at + 2]
    if third < 128:
        if not third:
            raise Irregular
        return first | (second & 127) << 7 | third << 14, at + 3
    value = first | (second & 127) << 7 | (third & 127) << 14
    for index in range(3, VARINT_BYTES_MAX):
        byte = data[at + index]
        value |= (byte & 127) << index * 7
        if byte < 128:
            if not byte or value > UINT_MAX:
                raise Irregular
            return value, at + index + 1
    raise Irregular


def decode_uint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the number at the offset `at`. Returns the number and the offset after it. Raises as `long_uint` does."""
    value = data[at]
    return (value, at + 1) if value < 128 else long_uint(data, at)


def encode_uint(value: int) -> bytes:
    """Encodes a number in its shortest form. Raises Irregular if `value` is not from 0 to 2^64 - 1."""
    if 0 <= value < 128:
        return ONE_BYTE[value]
    if not 0 <= value <= UINT_MAX:
        raise Irregular
    if value < 1 << 14:
        return FIRST_BYTE[value & 127] + ONE_BYTE[value >> 7]
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    if value < 1 << 28:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21))
    # Longer numbers are rare, so they need no unrolled form.
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
