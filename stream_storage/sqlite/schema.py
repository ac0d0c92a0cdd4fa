"""The version of the tables in a database file, and the statements that create them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Index, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from stream_storage.schema import metadata

SCHEMA_VERSION = 3
"""The version of the tables (`user_version`). It rises with every change that shuts older programs out."""
APPLICATION_ID = 0x53744E64
"""Marks a database as one of this program ("StNd"). Files with another number are not opened, unless empty."""


def create_statements(further: Sequence[Table] = ()) -> list[str]:
    """Returns the statements that create the missing tables and indexes of `metadata` and `further`."""
    dialect = sqlite.dialect()
    made: list[str] = []
    for table in (*metadata.sorted_tables, *further):
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
        indexes: list[Index] = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)) for index in indexes]
    return made
