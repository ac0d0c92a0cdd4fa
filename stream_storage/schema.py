"""The tables of the log. Other packages add their own to `metadata`. `stream_storage.postgres.schema` creates the same
columns in PostgreSQL."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text, UniqueConstraint

from stream_storage.seal import seal_column

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
"""One row for each stream-partition. The last column is a seal (`stream_storage.seal`). AUTOINCREMENT keeps a new
stream from getting the id of a deleted one."""

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
"""One row for each message, with a checksum (`stream_storage.checksum`). Without rowids, a message of 1 KiB would take
4.5 times its size on disk. A foreign key is not needed: each append updates the row of its stream."""
