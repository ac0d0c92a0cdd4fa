"""Makes columns from the messages of a page. The row of a message depends on this message alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_export.decode.json_text import Malformed, Pairs, decode_text
from spark_export.decode.typed_values import Convert, Converters
from spark_export.errors import OptionError

PROBLEMS_MAX = 8
"""How many of a message's problems are said."""


@dataclass(frozen=True)
class RowRules:
    """How messages become rows.

    corrupt: the name of the column for a message that is not of the decoded kind or has a value that does not fit; the
    column has the message's text (STRING) or bytes (BINARY), and null for other messages. problem: the name of the
    column that says what is wrong with such a message. zone: the zone of times whose text names none.
    """

    corrupt: str = "_corrupt_record"
    problem: str = "_problem"
    zone: str = "UTC"

    def without_notes(self, fields: Sequence[pa.Field]) -> list[pa.Field]:
        """Returns the fields that are values of messages: all but those of `corrupt` and `problem`."""
        return [field for field in fields if field.name not in (self.corrupt, self.problem)]


class RowMaker:
    """Makes the columns `fields` from messages. A maker serves one page after another."""

    def __init__(self, fields: Sequence[pa.Field], rules: RowRules) -> None:
        """Raises OptionError for a column type that messages cannot be decoded into."""
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

    def columns(self, data: pa.Array, load: Callable[[bytes], Pairs | Mapping[Any, Any] | None]) -> list[pa.Array]:
        """Returns one array for each field, with one row for each message.

        load: reads one message; it returns None for an empty message, which is no error, and raises Malformed.
        """
        rows = [self._row(message, load) for message in data.to_pylist()]
        return [pa.array([row[field.name] for row in rows], field.type) for field in self._fields]

    def _row(self, message: bytes, load: Callable[[bytes], Pairs | Mapping[Any, Any] | None]) -> dict[str, Any]:
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
