"""Two helpers for the tables of this package: the type of a position's key, and a function that compiles SQL
statements."""

from __future__ import annotations

from typing import TypeAlias

from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

Key: TypeAlias = tuple[str, str, int]
"""The key of a position: client id, stream name, partition."""


def compiled(statement: ClauseElement) -> str:
    """Compiles a statement to SQL text with named parameters, as the driver of the database takes it."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))
