"""Compiles statements for PostgreSQL, each once, and reads their rows.

PostgreSQL's type for texts cannot hold a zero byte and sorts by a locale, so every text is stored as its UTF-8 bytes,
whose order is that of the code points. Every integer takes 64 bits, as in SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Select, String
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGTypeCompiler

from stream_storage.statement import Statement, Values

if TYPE_CHECKING:
    import psycopg


class _TypeCompiler(PGTypeCompiler):
    def visit_TEXT(self, type_: Any, **options: Any) -> str:
        return "BYTEA"

    def visit_VARCHAR(self, type_: Any, **options: Any) -> str:
        return "BYTEA"

    def visit_INTEGER(self, type_: Any, **options: Any) -> str:
        return "BIGINT"


class _Compiler(PGCompiler):
    def _on_conflict_target(self, clause: Any, **options: Any) -> str:
        # `stream_storage.statement.upsert` makes SQLite's clause, which cannot name a constraint.
        clause.constraint_target = None
        return str(super()._on_conflict_target(clause, **options))  # type: ignore[no-untyped-call]


class Dialect(PGDialect):
    """PostgreSQL as a node uses it, with parameters $1, $2 and so on."""

    supports_statement_cache = False
    statement_compiler = _Compiler
    type_compiler_cls = _TypeCompiler


_dialect = Dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


class Compiled(NamedTuple):
    """A statement for PostgreSQL."""

    text: str
    positions: tuple[str, ...]  # the names of the parameters, in the order $1, $2 and so on
    texts: tuple[int, ...]  # the columns of its rows that are texts, counted from 0


@cache
def compile_statement(statement: Statement) -> Compiled:
    made = statement.element.compile(dialect=_dialect)
    columns = statement.element.selected_columns if isinstance(statement.element, Select) else ()
    texts = tuple(place for place, column in enumerate(columns) if isinstance(column.type, String))
    return Compiled(str(made), tuple(getattr(made, "positiontup", None) or ()), texts)


def in_order(statement: Statement, compiled: Compiled, values: Values) -> list[Any]:
    """Returns the values of a statement's parameters in the order of PostgreSQL's text, and each text as bytes."""
    named = values if isinstance(values, Mapping) else dict(zip(statement.names, values, strict=True))
    return [as_stored(named[name]) for name in compiled.positions]


def as_stored(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


class PostgresRows:
    """The rows of one statement, all of which have come from the server already. texts: as in Compiled."""

    __slots__ = ("_cursor", "_texts")

    def __init__(self, cursor: psycopg.Cursor[Any], texts: tuple[int, ...]) -> None:
        self._cursor = cursor
        self._texts = texts

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    def fetchone(self) -> Any:
        row = self._cursor.fetchone()
        return row if row is None or not self._texts else self._decoded(row)

    def fetchall(self) -> list[Any]:
        rows = self._cursor.fetchall()
        return list(map(self._decoded, rows)) if self._texts else rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def _decoded(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        columns = list(row)
        for place in self._texts:
            if columns[place] is not None:
                columns[place] = columns[place].decode()
        return tuple(columns)
