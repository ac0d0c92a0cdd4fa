"""SQL statements that are written once, with SQLAlchemy Core, for every kind of database.

A session runs the text on a connection of the database's driver: a connection of SQLAlchemy would take ten times as
long as SQLite needs to read one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from sqlalchemy import Table, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import BigInteger

_positional, _named = sqlite.dialect(paramstyle="qmark"), sqlite.dialect(paramstyle="named")

upsert = sqlite.insert
"""An INSERT that can do something else if the row is there already. SQLite's statement serves PostgreSQL, too. So a
node without PostgreSQL does not load that dialect."""

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The values of a statement's parameters: in their order, or by their names."""


class Rows(Protocol):
    """The rows that a statement returns. The caller reads them before the session does anything else."""

    @property
    def rowcount(self) -> int:
        """How many rows the statement has changed."""

    def fetchone(self) -> Any:
        """Returns the next row, or None after the last one."""

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Statement(str):
    """An SQL statement. As a text, it is the statement for SQLite."""

    __slots__ = ("element", "names")

    # `stream_storage.postgres.dialect` compiles the element for PostgreSQL. The names are in the order of the values,
    # or empty if the values come by their names.
    element: ClauseElement
    names: tuple[str, ...]


def compiled(element: ClauseElement, *names: str) -> Statement:
    """Compiles a statement. names: the parameters in the order of the text, in which their values are given."""
    made = element.compile(dialect=_positional if names else _named)
    positions = tuple(getattr(made, "positiontup", None) or ())
    assert positions == names, f"the parameters are {positions}, not {names}"
    statement = Statement(made)
    statement.element, statement.names = element, names
    return statement


def sql(statement: str) -> Statement:
    """Compiles a statement in SQL that returns no texts. Its parameters are written as `:index`, and their values are
    given in the order of the statement."""
    element = text(statement)
    return compiled(element, *(getattr(element.compile(dialect=_positional), "positiontup", None) or ()))


def replacing(table: Table, *keys: str) -> Statement:
    """Compiles an INSERT of a whole row, which replaces the row with the same values in the columns `keys`."""
    new, names = upsert(table), table.c.keys()
    replaced = {name: new.excluded[name] for name in names if name not in keys}
    return compiled(new.on_conflict_do_update(index_elements=keys, set_=replaced), *names)


class greatest(GenericFunction[int]):
    """The larger of two numbers."""

    inherit_cache = True
    package = "stream_storage"  # in the registry of SQLAlchemy, so that `func.greatest` of other code is not this class
    type = BigInteger()


@compiles(greatest, "sqlite")
def _greatest(element: greatest, compiler: Any, **options: Any) -> str:
    """In SQLite the function is called max."""
    return f"max{compiler.function_argspec(element, **options)}"
