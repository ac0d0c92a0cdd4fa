"""Notation: shows a decoded value as text. It decodes nothing, and the text ends early when it is long.

It looks like JSON, with the diagnostic notation of CBOR (RFC 8949, section 8) for values that JSON lacks, so that no
value looks like another one:

    {"name": "x", 7: h'00ff', "rate": NaN, "more": undefined, "tagged": 24(h'01')}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

DECIMAL_BITS_MAX = 10_000
"""Larger integers are shown in hexadecimal digits, because Python refuses to write thousands of decimal digits."""
_INDENT = "  "


class _Enough(Exception):
    """Error: the text has reached its largest length."""


def show_value(value: Any, characters_max: int) -> str:
    """Returns the text of a value. If it has more than `characters_max` characters, it ends soon after these.
    value: a value from a decoder: mappings, sequences, sets, text, bytes, numbers, None, times; and tags, simple values
    and `undefined` of the package cbor2. Other values are shown as the text that Python gives them."""
    writer = _TextWriter(characters_max)
    with suppress(_Enough):
        writer.write(value, "\n")
    return "".join(writer.parts)


class _TextWriter:
    def __init__(self, characters_max: int) -> None:
        self.parts: list[str] = []
        self._left = characters_max

    def write(self, value: Any, line: str) -> None:
        """Writes a value. line: the beginning of a new line at the depth of this value."""
        if isinstance(value, str):
            self._put(_quoted(value))
        elif isinstance(value, Mapping):
            self._write_pairs(value, line)
        elif isinstance(value, bytes | bytearray):
            self._put(f"h'{bytes(value).hex()}'")
        elif isinstance(value, Sequence):
            self._write_list(value, "[]", line)
        elif isinstance(value, set | frozenset):
            self._write_list(value, "{}", line)
        elif hasattr(value, "tag") and hasattr(value, "value"):
            # A tag of CBOR that its library does not interpret.
            self._put(f"{value.tag}(")
            self.write(value.value, line)
            self._put(")")
        else:
            self._put(_single(value))

    def _write_pairs(self, value: Mapping[Any, Any], line: str) -> None:
        self._put("{")
        inner = line + _INDENT
        for place, (key, each) in enumerate(value.items()):
            self._put("," + inner if place else inner)
            self.write(key, inner)
            self._put(": ")
            self.write(each, inner)
        self._put(line + "}" if value else "}")

    def _write_list(self, values: Iterable[Any], brackets: str, line: str) -> None:
        self._put(brackets[0])
        inner, is_empty = line + _INDENT, True
        for each in values:
            self._put(inner if is_empty else "," + inner)
            self.write(each, inner)
            is_empty = False
        self._put(brackets[1] if is_empty else line + brackets[1])

    def _put(self, text: str) -> None:
        self.parts.append(text)
        self._left -= len(text)
        if self._left < 0:
            raise _Enough


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
