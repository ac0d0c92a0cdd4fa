"""Two helpers for the tables of this package: the key of a position, and the compiler of statements."""

from __future__ import annotations

from typing import TypeAlias

from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

Key: TypeAlias = tuple[str, str, int]
"""The key of a position: client id, stream name, partition."""


def compiled(statement: ClauseElement) -> str:
    """Compiles a statement to SQL text with named parameters, for the connection of the database driver."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))
