"""Variable-length numbers: the calls that compiled codecs make for more than one byte. It knows no offsets or
paths.

    1xxxxxxx 1xxxxxxx ... 0xxxxxxx      seven bits each, least significant first (section 2 of the draft)

A number has at most 64 bits, so at most ten bytes, and the tenth holds one bit. The shortest form is the only
form: the last byte of several is never zero. int is the same after zigzag: 0, -1, 1, -2 are sent as 0, 1, 2,
3.
"""

from __future__ import annotations

from bare.errors import Irregular
from bare.model import UINT_MAX

VARINT_BYTES_MAX = 10

# The encodings of 0 to 127, and the bytes of those seven bits where more follow.
ONE_BYTE = tuple(bytes((value,)) for value in range(128))
FIRST_BYTE = tuple(bytes((value | 128,)) for value in range(128))


def long_uint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, whose first byte is known to be over 127, and the offset after it.

    Raises Irregular for a form that is not the shortest or has over 64 bits, and IndexError when bytes are
    missing.
    """
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


def encode_uint(value: int) -> bytes:
    """The shortest form of `value`. Raises Irregular unless it is from 0 to 2^64 - 1."""
    if 0 <= value < 128:
        return ONE_BYTE[value]
    if not 0 <= value <= UINT_MAX:
        raise Irregular
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    if value < 1 << 28:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
