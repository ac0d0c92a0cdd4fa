"""The tables of the database and the version of their shape. Other packages add theirs to `metadata`."""

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
"""Kept in the file header as `user_version`; raised with every change that older programs cannot read."""
APPLICATION_ID = 0x53744E64
"""Kept in the file header as `application_id` ("StNd"): another program's database is never touched."""

metadata = MetaData()

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
"""One row a stream-partition, see `storage.seal` for the seal. AUTOINCREMENT, so that the id of a deleted stream never
names another one."""

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
"""One row a message, see `storage.checksum` for the checksum.

A rowid table with an index on (stream_id, idx): without rowids a body of 1 KiB costs 4.5 times its size on disk. There
is no foreign key: an append proves that its stream exists when it moves the stream's end, once and not once a row.
"""


def create_statements() -> list[str]:
    """SQL that makes whatever is missing of all tables in `metadata`. Safe to repeat."""
    dialect = sqlite.dialect()
    made: list[str] = []
    for table in metadata.sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
        indexes: list[Index] = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)) for index in indexes]
    return made
