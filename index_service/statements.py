"""What the tables of this package share: the key of a position, and statements compiled once."""

from __future__ import annotations

from typing import TypeAlias

from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

Key: TypeAlias = tuple[str, str, int]
"""client id, stream name, partition."""


def compiled(statement: ClauseElement) -> str:
    """The statement as text with named parameters, made once; it runs on the driver connection."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))
