"""Notation: shows a decoded value as text. It decodes nothing, and the text ends early when it is long.

It looks like JSON, with the diagnostic notation of CBOR (RFC 8949, section 8) for values that JSON lacks, so that no
value looks like another one:

    {"name": "x", 7: h'00ff', "rate": NaN, "more": undefined, "tagged": 24(h'01')}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

DECIMAL_BITS_MAX = 10_000
"""Larger integers are shown in hexadecimal digits, because Python refuses to write thousands of decimal digits."""
_INDENT = "  "


def show_value(value: Any, characters_max: int) -> str:
    """Returns the text of a decoded value. One of more than `characters_max` characters ends soon after these."""
    parts, left = list[str](), characters_max
    for text in _texts(value, "\n"):
        parts.append(text)
        left -= len(text)
        if left < 0:
            break
    return "".join(parts)


def _texts(value: Any, line: str) -> Iterator[str]:
    """Yields the text of a value, in pieces. line: the beginning of a new line at the depth of this value."""
    inner = line + _INDENT
    if isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, Mapping):
        yield "{"
        for place, (key, each) in enumerate(value.items()):
            yield "," + inner if place else inner
            yield from _texts(key, inner)
            yield ": "
            yield from _texts(each, inner)
        yield line + "}" if value else "}"
    elif isinstance(value, bytes | bytearray):
        yield f"h'{bytes(value).hex()}'"
    elif isinstance(value, Sequence | set | frozenset):
        begin, end = "[]" if isinstance(value, Sequence) else "{}"
        yield begin
        for place, each in enumerate(value):
            yield "," + inner if place else inner
            yield from _texts(each, inner)
        yield line + end if value else end
    elif hasattr(value, "tag") and hasattr(value, "value"):
        # A tag of CBOR that its library does not interpret.
        yield f"{value.tag}("
        yield from _texts(value.value, line)
        yield ")"
    else:
        yield _single(value)


def _single(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= DECIMAL_BITS_MAX else hex(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    name = type(value).__name__
    if name == "CBORSimpleValue":
        return f"simple({int(value.value)})"
    if repr(value) == "undefined":
        return "undefined"
    return _quoted(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
