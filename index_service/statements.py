"""The key of a position, and the compiler of statements: shared by the tables of this package."""

from __future__ import annotations

from typing import TypeAlias

from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

Key: TypeAlias = tuple[str, str, int]
"""The key of a position: client id, stream name, partition."""


def compiled(statement: ClauseElement) -> str:
    """The statement as text with named parameters, for the driver's connection."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))
