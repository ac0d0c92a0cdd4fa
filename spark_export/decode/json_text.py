"""Reads one JSON object from the bytes of one message, as the parser of Spark's `from_json` does with its defaults.

Spark's defaults accept strings in single quotes, and the numbers `NaN`, `Infinity`, `-Infinity`, `+Infinity`, `-INF`
and `+INF`. Spark replaces bytes that are not UTF-8 by U+FFFD, and ignores what follows the object. A message
with another fault is refused as a whole, and so are deep nesting and long numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

DEPTH_MAX = 1000
"""The largest number of objects and arrays inside each other, as in Spark's parser."""
NUMBER_CHARACTERS_MAX = 1000
"""The largest number of characters of a number, as in Spark's parser."""

SPACE = re.compile(r"[ \t\n\r]*")
_ESCAPES = r"""\\["\\/bfnrt']|\\u[0-9a-fA-F]{4}"""
STRING = re.compile(rf"""\"((?:[^\"\\\x00-\x1f]|{_ESCAPES})*)\"|'((?:[^'\\\x00-\x1f]|{_ESCAPES})*)'""")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORD = re.compile(r"true|false|null|NaN|[+-]?Infinity|[+-]INF")
SURROGATE_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
# A number that is too long has at least this many digits in a row: before the point, after it, or in the exponent.
LONG_NUMBER = re.compile(r"[0-9]{330}")
LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class Malformed(ValueError):
    """A message that is not of the decoded kind. The text says why."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object: the names and values of its members in the order of the text. A name may occur twice."""


class FloatText(str):
    """The text of a JSON number that has a fraction or an exponent, or is `NaN` or an infinity."""

    __slots__ = ()


def decode_text(data: bytes) -> str:
    """Decodes UTF-8. Wrong bytes become as many characters U+FFFD as in Java."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Java counts the bytes of an encoded surrogate as one wrong character, and Python as two or three.
        return SURROGATE_BYTES.sub(b"\xef\xbf\xbd", data).decode(errors="replace")


def object_reader() -> Callable[[bytes], Pairs | None]:
    """Returns a function that reads one message.

    The function returns None for an empty or blank message. The function raises Malformed if the message is not one
    JSON object. Values are Pairs, list, str, FloatText, int, bool or None.
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
                # Not strict JSON, or too deep for this reader. The other reader decides as Spark does.
                pass
        return read_lenient(text, at)

    return read


def read_lenient(text: str, at: int) -> Pairs:
    """Reads the object that begins at the character `at`. Uses no recursion. Raises Malformed."""
    outer: list[tuple[Pairs | list[Any], str]] = []
    here: Pairs | list[Any] = Pairs()
    name, at, first = "", at + 1, True
    while True:
        at = _end(SPACE, text, at)
        char = text[at : at + 1]
        # The end of an object or array: it becomes the value of what it is in.
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
        # A value: an object or array that begins, or a whole string, number or word.
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
        # Two escapes may be one character: the halves of a surrogate pair.
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
