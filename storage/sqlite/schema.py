"""Defines the tables of the log and the schema version. Other packages add their own tables to `metadata`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from storage.seal import seal_column

SCHEMA_VERSION = 2
"""The version of the tables, stored in the file header as `user_version`. The version rises with every change after
which older programs cannot read the file."""
APPLICATION_ID = 0x53744E64
"""The number that marks a database as a database of this program ("StNd"), stored in the file header as
`application_id`. The program neither opens nor changes a database with another number, unless the file is empty."""

metadata = MetaData()
"""All tables of the database. A package adds a table by passing this object to the table's definition."""

streams = Table(
    "streams",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("first_index", BigInteger, nullable=False),
    Column("next_index", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("attributes", LargeBinary),
    seal_column(),
    UniqueConstraint("name", "partition"),
    sqlite_autoincrement=True,
)
"""The table of streams, with one row for each stream-partition. The last column is the seal, a checksum of the row (see
`storage.seal`). AUTOINCREMENT prevents a new stream from getting the id of a deleted stream."""

messages = Table(
    "messages",
    metadata,
    Column("stream_id", Integer, primary_key=True),
    Column("idx", BigInteger, primary_key=True),
    Column("time_us", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("key", LargeBinary),
    Column("headers", LargeBinary),
    Column("data", LargeBinary, nullable=False),
)
"""The table of messages, with one row for each message. `storage.checksum` describes the checksum.

This is a rowid table with an index on (stream_id, idx): without rowids, a message of 1 KiB would take 4.5 times its
size on disk. The table has no foreign key, because each append already updates the row of its stream: that update finds
no row if the stream does not exist. A foreign key would repeat this check for each message.
"""


def create_statements() -> list[str]:
    """Returns the SQL statements that create the tables and indexes of `metadata`. Tables and indexes that exist
    already are not changed."""
    dialect = sqlite.dialect()
    made: list[str] = []
    for table in metadata.sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
        indexes: list[Index] = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)) for index in indexes]
    return made
