"""Parses the text of TOML and JSON, so that every text that is not valid raises one error. It reads no files.

The parsers raise errors of many kinds for a damaged text: for nesting that is too deep, an integer with thousands of
digits, bytes that are not UTF-8. A reader that knew only some of these kinds would end the node."""

from __future__ import annotations

import tomllib
from typing import Any, TypeVar, overload

import msgspec

DEPTH_MAX = 100
"""The deepest nesting of a text. Functions of Python, such as `repr`, fail for values that are nested hundreds deep."""
INTEGER_BITS_MAX = 64
"""The longest integer. TOML promises no longer integers, and Python prints none with more than 4,300 digits."""

Kind = TypeVar("Kind")


class ParseError(ValueError):
    """The error of a text that is not valid. Its own text says why, without the name of the file."""


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """Parses a text of TOML. Raises ParseError."""
    try:
        values = tomllib.loads(text.decode() if isinstance(text, bytes) else text)
    except Exception as error:
        raise ParseError(_reason(error)) from error
    _check(values, DEPTH_MAX)
    return values


@overload
def parse_json(text: str | bytes, kind: type[Kind]) -> Kind: ...
@overload
def parse_json(text: str | bytes) -> Any: ...
def parse_json(text: str | bytes, kind: Any = Any) -> Any:
    """Parses a text of JSON as a value of this kind, such as a `msgspec.Struct`. Raises ParseError."""
    try:
        values = msgspec.json.decode(text, type=kind)
    except Exception as error:
        raise ParseError(_reason(error)) from error
    if kind is Any:
        _check(values, DEPTH_MAX)
    return values


def convert(values: Any, kind: type[Kind]) -> Kind:
    """Converts parsed values to a value of this kind. Raises ParseError."""
    try:
        return msgspec.convert(values, kind)
    except Exception as error:
        raise ParseError(_reason(error)) from error


def _reason(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _check(values: Any, depth: int) -> None:
    """Raises ParseError for values that are nested deeper than `depth`, and for integers that are too long."""
    if isinstance(values, int) and values.bit_length() > INTEGER_BITS_MAX:
        raise ParseError("it has an integer with more than 64 bits")
    if isinstance(values, dict | list):
        if not depth:
            raise ParseError("it is nested too deep")
        for each in values.values() if isinstance(values, dict) else values:
            _check(each, depth - 1)
