"""Parses a list of columns in Spark's DDL, such as `id INT, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>`.

All columns, members and elements can be null, because a message can lack any value.
"""

from __future__ import annotations

import re

import pyarrow as pa

from spark_export.errors import OptionError

TOKEN = re.compile(r"`(?:[^`]|``)+`|\w+|\S")
TYPES = {
    **{"boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16()},
    **{"int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32()},
    **{"real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()},
    **{"date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us")},
}


def parse_ddl(text: str) -> list[pa.Field]:
    """Returns the columns of a DDL text. Raises OptionError."""
    try:
        # The tokens are taken from the end of the list. The empty token is the end of the text.
        fields = _fields(["", *reversed(TOKEN.findall(text))], "")
        names = [field.name for field in fields]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"it has the column {twice[0]!r} twice")
    except ValueError as error:
        raise OptionError(f"the schema {text!r}: {error}") from error
    return fields


def _fields(tokens: list[str], end: str) -> list[pa.Field]:
    found = []
    while True:
        token = tokens.pop()
        if re.fullmatch(r"\w+|`.+`", token, re.DOTALL) is None:
            raise ValueError(f"a name and a type belong before {token or 'the end'!r}")
        name = token[1:-1].replace("``", "`") if token[0] == "`" else token
        if tokens[-1] == ":":
            tokens.pop()
        found.append(pa.field(name, _type(tokens)))
        if _take(tokens, ",", end) == end:
            return found


def _type(tokens: list[str]) -> pa.DataType:
    name = tokens.pop().lower()
    if name in TYPES:
        return TYPES[name]
    if name in ("decimal", "dec", "numeric"):
        return _decimal(tokens)
    if name not in ("array", "map", "struct"):
        raise ValueError(f"{name!r} is no type; there are {', '.join(TYPES)}, decimal, array, map and struct")
    _take(tokens, "<")
    if name == "struct":
        return pa.struct(_fields(tokens, ">"))
    made: pa.DataType = _type(tokens)
    if name == "map":
        _take(tokens, ",")
        made = pa.map_(made, _type(tokens))
    _take(tokens, ">")
    return made if name == "map" else pa.list_(pa.field("element", made))


def _decimal(tokens: list[str]) -> pa.DataType:
    if tokens[-1] != "(":
        return pa.decimal128(10, 0)
    _take(tokens, "(")
    precision, scale = int(tokens.pop()), 0
    if _take(tokens, ",", ")") == ",":
        scale = int(tokens.pop())
        _take(tokens, ")")
    return pa.decimal128(precision, scale)


def _take(tokens: list[str], *wanted: str) -> str:
    token = tokens.pop()
    if token not in wanted:
        expected = " or ".join(repr(each) if each else "the end" for each in wanted)
        raise ValueError(f"{token or 'the end'!r} stands where {expected} belongs")
    return token
