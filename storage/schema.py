"""The tables of the database, and their version. Other packages add their own tables to `metadata`."""

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
"""The version of the tables, in the file header as `user_version`. It rises with every change that older programs
cannot read."""
APPLICATION_ID = 0x53744E64
"""Marks a database as ours, in the file header as `application_id` ("StNd"). A file of another program is left
alone."""

metadata = MetaData()
"""All tables of the database. A package adds its tables by defining them with this object."""

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
"""One row for each stream-partition. The seal is described in `storage.seal`. AUTOINCREMENT keeps the id of a deleted
stream from being given to another stream."""

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
"""One row for each message. The checksum is described in `storage.checksum`.

This is a rowid table with an index on (stream_id, idx): without rowids, a message of 1 KiB takes 4.5 times its size on
disk. There is no foreign key: an append moves the next index of its stream, which proves once that the stream exists; a
foreign key would prove it again for each row.
"""


def create_statements() -> list[str]:
    """The SQL that makes all missing tables and indexes of `metadata`. Safe to repeat."""
    dialect = sqlite.dialect()
    made: list[str] = []
    for table in metadata.sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
        indexes: list[Index] = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)) for index in indexes]
    return made
