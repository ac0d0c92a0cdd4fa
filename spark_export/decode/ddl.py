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
        fields = _DdlParser(text).fields("")
        names = [field.name for field in fields]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"it has the column {twice[0]!r} twice")
    except ValueError as error:
        raise OptionError(f"the schema {text!r}: {error}") from error
    return fields


class _DdlParser:
    def __init__(self, text: str) -> None:
        self._tokens = [*TOKEN.findall(text), ""]
        self._at = 0

    def _next(self) -> str:
        """Returns the next token; the empty token is the end."""
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._next()
        if token not in wanted:
            expected = " or ".join(repr(each) if each else "the end" for each in wanted)
            raise ValueError(f"{token or 'the end'!r} stands where {expected} belongs")
        return token

    def fields(self, end: str) -> list[pa.Field]:
        found = []
        while True:
            token = self._next()
            if re.fullmatch(r"\w+|`.+`", token, re.DOTALL) is None:
                raise ValueError(f"a name and a type belong before {token or 'the end'!r}")
            name = token[1:-1].replace("``", "`") if token[0] == "`" else token
            self._at += self._tokens[self._at] == ":"
            found.append(pa.field(name, self._type()))
            if self._take(",", end) == end:
                return found

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name in TYPES:
            return TYPES[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise ValueError(f"{name!r} is no type; there are {', '.join(TYPES)}, decimal, array, map and struct")
        self._take("<")
        if name == "struct":
            return pa.struct(self.fields(">"))
        made: pa.DataType = self._type()
        if name == "map":
            self._take(",")
            made = pa.map_(made, self._type())
        self._take(">")
        return made if name == "map" else pa.list_(pa.field("element", made))

    def _decimal(self) -> pa.DataType:
        if self._tokens[self._at] != "(":
            return pa.decimal128(10, 0)
        self._at += 1
        precision, scale = int(self._next()), 0
        if self._take(",", ")") == ",":
            scale = int(self._next())
            self._take(")")
        return pa.decimal128(precision, scale)
