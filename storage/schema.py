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
"""The version of the tables, stored in the file header as `user_version`. It rises with every change that makes the
file unreadable for older programs."""
APPLICATION_ID = 0x53744E64
"""The number that marks a database as a database of this program ("StNd"), stored in the file header as
`application_id`. The program never changes a file with another number."""

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
"""The table of streams, with one row for each stream-partition. `storage.seal` describes the seal. AUTOINCREMENT
prevents a new stream from getting the id of a deleted stream."""

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

This is a rowid table with an index on (stream_id, idx): without rowids, a message of 1 KiB takes 4.5 times its size on
disk. The table has no foreign key: an append moves the next index of its stream, which checks once that the stream
exists. A foreign key would check this again for each row.
"""


def create_statements() -> list[str]:
    """Returns the SQL statements that create all missing tables and indexes of `metadata`. They may be run
    repeatedly."""
    dialect = sqlite.dialect()
    made: list[str] = []
    for table in metadata.sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)))
        indexes: list[Index] = sorted(table.indexes, key=lambda index: str(index.name))
        made += [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)) for index in indexes]
    return made
