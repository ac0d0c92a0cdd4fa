"""Compiles statements for PostgreSQL, each once, and reads their rows. Turns a statement for one row into one for many.

PostgreSQL's type for texts cannot hold a zero byte and sorts by a locale, so every text is stored as its UTF-8 bytes,
whose order is that of the code points. Every integer takes 64 bits, as in SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, Insert, Integer, LargeBinary, Select, String
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDialect, PGTypeCompiler
from sqlalchemy.types import TypeEngine

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
    return [value.encode() if isinstance(value := named[name], str) else value for name in compiled.positions]


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


SET_ROWS_MAX, SET_BYTES_MAX = 5_000, 4 * 1024 * 1024
"""The most rows of one statement, and the most bytes of their values, unless one row has more."""

_INSERT = re.compile(r"INSERT INTO \w+ \((?P<columns>[\w, ]+)\) VALUES \((?P<values>\$[$\d, ]+)\)")
_CONFLICT = re.compile(r"ON CONFLICT \(([\w, ]+)\) DO UPDATE")
_PARAMETER = re.compile(r"\$(\d+)")


class SetInsert(NamedTuple):
    """An INSERT of many rows, whose parameters are the columns, each as a list."""

    text: str
    key: tuple[int, ...]  # the places, from 0, of the columns in which no two rows of a statement may be equal


@cache
def set_insert(statement: Statement) -> SetInsert | None:
    """Returns the INSERT of many rows that does what an INSERT of one row does; None for other statements.

    INSERT INTO t (a, b) VALUES ($1, $2) ON CONFLICT …
    INSERT INTO t (a, b) SELECT * FROM unnest($1::bytea[], $2::bigint[]) ON CONFLICT …"""
    made = compile_statement(statement)
    element, found = statement.element, _INSERT.match(made.text)
    numbered = ", ".join(f"${number}" for number in range(1, len(made.positions) + 1))
    # A value that is no parameter, or a parameter that fills two columns, would need a list of its own.
    if not isinstance(element, Insert) or found is None or found["values"] != numbered:
        return None
    columns = found["columns"].split(", ")
    lists = _unnested([element.table.c[name].type for name in columns])
    text = made.text[: found.end("columns")] + f") SELECT * FROM {lists}" + made.text[found.end() :]
    conflict = _CONFLICT.search(text)
    key = () if conflict is None else tuple(columns.index(name) for name in conflict[1].split(", "))
    return SetInsert(text, key)


@cache
def set_lookup(statement: Statement) -> Compiled:
    """Returns the SELECT of a row for each of many sets of values. Its rows begin with the set's place, from 1.

    SELECT c FROM t WHERE a = $1
    SELECT asked.place, found.* FROM unnest($1::bytea[]) WITH ORDINALITY AS asked(p1, place),
        LATERAL (SELECT c FROM t WHERE a = asked.p1) AS found"""
    made = compile_statement(statement)
    names = ", ".join(f"p{number}" for number in range(1, len(made.positions) + 1))
    parameters: Any = statement.element.compile()
    lists = _unnested([parameters.binds[name].type for name in made.positions])
    found = _PARAMETER.sub(r"asked.p\1", made.text)
    asked = f"{lists} WITH ORDINALITY AS asked({names}, place)"
    text = f"SELECT asked.place, found.* FROM {asked}, LATERAL ({found}) AS found"
    return Compiled(text, made.positions, tuple(place + 1 for place in made.texts))


def split_rows(rows: Sequence[Sequence[Any]], key: tuple[int, ...]) -> Iterator[list[Sequence[Any]]]:
    """Splits rows into bounded sets for one statement each, in order. No two rows of a set have the same key, because a
    statement cannot change a row twice."""
    part: list[Sequence[Any]] = []
    seen: set[tuple[Any, ...]] = set()
    part_bytes = 0
    for row in rows:
        own = tuple(row[place] for place in key)
        row_bytes = sum(len(value) for value in row if isinstance(value, bytes))
        if part and (len(part) == SET_ROWS_MAX or part_bytes + row_bytes > SET_BYTES_MAX or (key and own in seen)):
            yield part
            part, part_bytes = [], 0
            seen.clear()
        part.append(row)
        seen.add(own)
        part_bytes += row_bytes
    if part:
        yield part


def columns_of(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True)))


def _unnested(types: Sequence[TypeEngine[Any]]) -> str:
    return f"unnest({', '.join(f'${number}::{_array(type_)}' for number, type_ in enumerate(types, 1))})"


def _array(type_: TypeEngine[Any]) -> str:
    if isinstance(type_, Integer | BigInteger):
        return "bigint[]"
    assert isinstance(type_, String | LargeBinary), f"a parameter of the type {type_!r} has no list"
    return "bytea[]"
