"""Builds columns from the messages of a page. Each message becomes one row, without regard to other messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructField

from spark_export.decode.json_text import Malformed, Pairs, decode_text
from spark_export.decode.typed_values import Convert, Converters
from spark_export.errors import OptionError

PROBLEMS_MAX = 8
"""The largest number of problems of one message that are listed in the column for problems."""


@dataclass(frozen=True)
class RowRules:
    """The rules by which messages become rows. A bad message has a wrong format, or a value that does not fit its
    column.

    corrupt: the column with the text (STRING) or bytes (BINARY) of a bad message; problem: the column with the reasons.
    zone: the time zone of times whose text contains no zone.
    """

    corrupt: str = "_corrupt_record"
    problem: str = "_problem"
    zone: str = "UTC"

    def without_notes(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        return [field for field in fields if field.name not in (self.corrupt, self.problem)]


Load: TypeAlias = Callable[[bytes], Pairs | Mapping[Any, Any] | None]
"""A function that parses one message. It returns None for an empty message, and raises Malformed for a wrong one."""


class NamedColumns:
    """The base of the decoders whose columns the user names with `.schema(…)`. A subclass parses the messages."""

    needs_headers = False

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules

    def columns(self) -> list[StructField] | None:
        return None

    def check(self, fields: Sequence[pa.Field]) -> None:
        RowMaker(fields, self._rules)

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        return RowMaker(fields, self._rules).columns(data, self._loader(fields))

    def _loader(self, fields: Sequence[pa.Field]) -> Load:
        raise NotImplementedError


class RowMaker:
    def __init__(self, fields: Sequence[pa.Field], rules: RowRules) -> None:
        """Finds the converter of each column. Raises OptionError for an unsupported type or a wrong time zone."""
        self._fields = list(fields)
        try:
            self._converters = Converters(rules.zone)
        except ValueError as error:
            raise OptionError(f"timeZone: {error}") from error
        self._converts: dict[str, Convert] = {}
        self._corrupt = self._problem = None
        for field in fields:
            if field.name == rules.corrupt:
                if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
                    raise OptionError(f"the column {field.name!r} is the message as it is: ask for STRING or BINARY")
                self._corrupt = field
            elif field.name == rules.problem:
                if not pa.types.is_string(field.type):
                    raise OptionError(f"the column {field.name!r} says what is wrong with a message: ask for STRING")
                self._problem = field
            else:
                try:
                    self._converts[field.name] = self._converters.find(field.type)
                except TypeError as error:
                    raise OptionError(f"the column {field.name!r}: {error}") from error

    def columns(self, data: pa.Array, load: Load) -> list[pa.Array]:
        rows = [self._row(message, load) for message in data.to_pylist()]
        return [pa.array([row[field.name] for row in rows], field.type) for field in self._fields]

    def _row(self, message: bytes, load: Load) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys([field.name for field in self._fields])
        problems = self._converters.problems
        problems.clear()
        try:
            found = load(message)
            if found is not None:
                members = found if isinstance(found, Pairs) else found.items()
                self._converters.fill(row, members, self._converts)
        except Malformed as error:
            problems.append(str(error))
        if problems:
            if self._corrupt is not None:
                row[self._corrupt.name] = message if pa.types.is_binary(self._corrupt.type) else decode_text(message)
            if self._problem is not None:
                row[self._problem.name] = "; ".join(problems[:PROBLEMS_MAX])
        return row
