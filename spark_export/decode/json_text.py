"""Parses one JSON object from the bytes of a message, as Spark's `from_json` does with default options.

The parser accepts strings in single quotes, and the numbers `NaN`, `Infinity`, `-Infinity`, `+Infinity`, `-INF` and
`+INF`. It replaces bytes that are not UTF-8 by U+FFFD, and ignores text after the object. The parser refuses any other
error of syntax, nesting deeper than `DEPTH_MAX`, and numbers longer than `NUMBER_CHARACTERS_MAX`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

DEPTH_MAX = 1000
NUMBER_CHARACTERS_MAX = 1000

SPACE = re.compile(r"[ \t\n\r]*")
_ESCAPES = r"""\\["\\/bfnrt']|\\u[0-9a-fA-F]{4}"""
STRING = re.compile(rf"""\"((?:[^\"\\\x00-\x1f]|{_ESCAPES})*)\"|'((?:[^'\\\x00-\x1f]|{_ESCAPES})*)'""")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORD = re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF")
SURROGATE_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
# A number of more than 1,000 characters has at least 330 digits in a row: before the point, after the point, or in the
# exponent.
LONG_NUMBER = re.compile(r"[0-9]{330}")
LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class Malformed(ValueError):
    """A message does not have the expected format, such as JSON or Avro. The text gives the reason."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of (name, value) pairs, in the order of the text. A name can occur twice."""


class FloatText(str):
    """A JSON number as text: a number with a fraction or an exponent, `NaN` or an infinity."""

    __slots__ = ()


def decode_text(data: bytes) -> str:
    """Decodes UTF-8. Invalid bytes become as many U+FFFD as in Java."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Java replaces all bytes of an encoded surrogate by one U+FFFD; Python replaces them by two or three.
        return SURROGATE_BYTES.sub(b"\xef\xbf\xbd", data).decode(errors="replace")


def object_reader() -> Callable[[bytes], Pairs | None]:
    """Returns a function that parses one message into `Pairs`; None for a blank message. It raises Malformed.

    A value in the result is a Pairs, list, str, FloatText, int, bool or None.
    """
    decoder = json.JSONDecoder(object_pairs_hook=Pairs, parse_float=FloatText, parse_constant=FloatText)

    def read(data: bytes) -> Pairs | None:
        text = decode_text(data)
        at = 0
        if not text.startswith("{"):
            at = _end(SPACE, text, 0)
            if at == len(text):
                return None
            if text[at] != "{":
                raise Malformed("the message is not one JSON object")
        is_short = len(text) <= NUMBER_CHARACTERS_MAX
        if is_short or (text.count("{") + text.count("[") <= DEPTH_MAX and LONG_NUMBER.search(text) is None):
            try:
                found: Pairs = decoder.raw_decode(text, at)[0]
                return found
            except (ValueError, RecursionError):
                # Not strict JSON, or too deep for the decoder of Python. `read_lenient` decides as Spark does.
                pass
        return read_lenient(text, at)

    return read


def read_lenient(text: str, at: int) -> Pairs:
    """Parses the object that begins at character `at`, by the rules of Spark. Raises Malformed. Without recursion, so
    that deep nesting cannot exhaust the stack."""
    outer: list[tuple[Pairs | list[Any], str]] = []
    here: Pairs | list[Any] = Pairs()
    name, at, first = "", at + 1, True
    while True:
        at = _end(SPACE, text, at)
        char = text[at : at + 1]
        # An object or array ends. It becomes a value in the enclosing object or array.
        if char == ("}" if isinstance(here, Pairs) else "]"):
            at += 1
            if not outer:
                assert isinstance(here, Pairs), "the outermost value is an object"
                return here
            value: Any = here
            here, name = outer.pop()
            _add(here, name, value)
            first = False
            continue
        if not first:
            if char != ",":
                raise Malformed(f"at character {at + 1}: not a comma or an end of the object or array")
            at = _end(SPACE, text, at + 1)
        if isinstance(here, Pairs):
            name, at = _string(text, at)
            at = _end(SPACE, text, at)
            if text[at : at + 1] != ":":
                raise Malformed(f"at character {at + 1}: not a colon")
            at = _end(SPACE, text, at + 1)
        # A value follows: the beginning of an object or array, or a complete string, number or word.
        char = text[at : at + 1]
        if char and char in "{[":
            outer.append((here, name))
            if len(outer) >= DEPTH_MAX:
                raise Malformed(f"more than {DEPTH_MAX} objects and arrays inside each other")
            here, at, first = (Pairs() if char == "{" else []), at + 1, True
            continue
        value, at = _scalar(text, at)
        _add(here, name, value)
        first = False


def _add(here: Pairs | list[Any], name: str, value: Any) -> None:
    here.append((name, value) if isinstance(here, Pairs) else value)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _string(text: str, at: int) -> tuple[str, int]:
    found = STRING.match(text, at)
    if found is None:
        raise Malformed(f"at character {at + 1}: not a string")
    raw = found[1] if found[1] is not None else found[2]
    if "\\" in raw:
        raw = ESCAPE.sub(_unescaped, raw)
        # Two escapes may form one character: a surrogate pair.
        raw = raw.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return raw, found.end()


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else LETTERS.get(escape[2], escape[2])


def _scalar(text: str, at: int) -> tuple[Any, int]:
    if text[at : at + 1] in ('"', "'"):
        return _string(text, at)
    if found := WORD.match(text, at):
        word = found[0]
        return (WORDS[word] if word in WORDS else FloatText(word.replace("INF", "Infinity"))), found.end()
    found = NUMBER.match(text, at)
    if found is None:
        raise Malformed(f"at character {at + 1}: not a value")
    if len(found[0]) > NUMBER_CHARACTERS_MAX:
        raise Malformed(f"at character {at + 1}: a number of more than {NUMBER_CHARACTERS_MAX} characters")
    is_whole = found[1] is None and found[2] is None
    return (int(found[0]) if is_whole else FloatText(found[0])), found.end()
