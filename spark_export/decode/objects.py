"""Parses messages that consist of one JSON object or one CBOR map."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from uuid import UUID

from spark_export.decode.converters import DECIMALS
from spark_export.decode.values import Day, FloatText, Instant, Malformed, scaled
from spark_export.errors import OptionError

BLANK = " \t\n\r"


def json_reader() -> Callable[[bytes], Mapping[Any, Any]]:
    """Returns a function that parses one message, and raises Malformed. A blank message has no members.

    Bytes that are not UTF-8 become U+FFFD. The last of several members with one name counts. Text after the object is
    ignored.
    """
    decoder = json.JSONDecoder(parse_float=FloatText, parse_constant=FloatText)

    def read(data: bytes) -> Mapping[Any, Any]:
        text = data.decode(errors="replace").lstrip(BLANK)
        if not text:
            return {}
        if text[0] != "{":
            raise Malformed("the message is not one JSON object")
        try:
            found: dict[str, Any] = decoder.raw_decode(text)[0]
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the message is not JSON: {error}") from error
        return found

    return read


def _seconds(value: Any) -> Any:
    # Only these types are converted, since a decimal can have billions of digits.
    return Instant(round(Fraction(value) * 1_000_000)) if type(value) in (int, float) else None


def _decimal(value: Any) -> Any:
    exponent, digits = value
    return scaled(digits, exponent) if type(digits) is int else None


def _binary_decimal(value: Any) -> Any:
    exponent, digits = value
    return DECIMALS.multiply(Decimal(digits), DECIMALS.power(2, exponent)) if type(digits) is int else None


TAGS: Mapping[int, Callable[[Any], Any]] = {
    0: lambda value: value if type(value) is str else None,
    1: _seconds,
    4: _decimal,
    5: _binary_decimal,
    37: lambda value: UUID(bytes=value),
    100: lambda value: Day(value) if type(value) is int else None,
    1004: lambda value: value if type(value) is str else None,
    # No column has a type for these tags.
    **dict.fromkeys((30, 35, 36, 260, 261), lambda value: None),
    # These refer to other values of the message: with them, a few kilobytes could become billions of values.
    **dict.fromkeys((25, 29), lambda value: None),
}
"""By CBOR tag, the function that converts the tagged value, or returns None if the value is wrong for the tag. cbor2
itself would refuse the whole message for one wrong value."""


def cbor_reader() -> Callable[[bytes], Mapping[Any, Any]]:
    """Returns a function that decodes one message and raises Malformed. Raises OptionError without cbor2.

    Bytes after the map are ignored. A tagged value that is wrong for its tag fits no column.
    """
    try:
        import cbor2
    except ImportError as error:
        raise OptionError("decode=cbor needs the package cbor2 on every worker; install the extra `export`") from error

    def tagged_value(tag: int, value: Any, immutable: bool) -> Any:
        try:
            made = TAGS[tag](value)
        except (ArithmeticError, TypeError, ValueError):
            made = None
        return cbor2.CBORTag(tag, value) if made is None else made

    tagged = {tag: partial(tagged_value, tag) for tag in TAGS}

    def read(message: bytes) -> Mapping[Any, Any]:
        try:
            found = cbor2.loads(message, semantic_decoders=tagged)
        except MemoryError:
            raise
        except Exception as error:
            # cbor2 raises errors of many types for wrong bytes.
            raise Malformed(f"the message is not CBOR: {error or type(error).__name__}") from error
        if not isinstance(found, Mapping):
            raise Malformed("the message is not one CBOR map")
        return found

    return read
