"""The version of the tables in a database file, and the statements that create them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Index, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from stream_storage.schema import metadata

SCHEMA_VERSION = 3
"""The version of the tables, stored in the file header as `user_version`. The version rises with every change after
which older programs cannot read the file."""
APPLICATION_ID = 0x53744E64
"""The number that marks a database as a database of this program ("StNd"), stored in the file header as
`application_id`. The program neither opens nor changes a database with another number, unless the file is empty."""


def create_statements(further: Sequence[Table] = ()) -> list[str]:
    """Returns the SQL statements that create the tables and indexes of `metadata`. Tables and indexes that exist
    already are not changed.

    further: tables that are not in `metadata`."""
    dialect = sqlite.dialect()
    made: list[str] = []
    for table in (*metadata.sorted_tables, *further):
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
        indexes: list[Index] = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)) for index in indexes]
    return made
