"""The tables of the ledger. `ledger.py` reads and writes them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, MetaData, Table, Text

LEDGER_VERSION = 1
"""Kept in the file's header as `user_version`; raised with every change that older programs cannot read."""
APPLICATION_ID = 0x53744C67
"""Kept in the file's header as `application_id` ("StLg"): another program's database is never touched."""

metadata = MetaData()

exports = Table(
    "export",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("table_id", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)
"""One row: what this folder is. table_id: names it in the transaction logs of Delta and Iceberg."""

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    Column("finished_us", BigInteger),
    Column("rows", BigInteger, nullable=False, server_default="0"),
    Column("data_bytes", BigInteger, nullable=False, server_default="0"),
    Column("file_bytes", BigInteger, nullable=False, server_default="0"),
    Column("files", Integer, nullable=False, server_default="0"),
    Column("lost", BigInteger, nullable=False, server_default="0"),
    Column("error", Text),
    sqlite_autoincrement=True,
)
"""AUTOINCREMENT, since the id is the idempotence key of a publication, and must never be used twice."""

ranges = Table(
    "ranges",
    metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("era", Integer, nullable=False),
    Column("made_us", BigInteger, nullable=False),
    Column("start_index", BigInteger, nullable=False),
    Column("end_index", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("lost", BigInteger, nullable=False),
)

generations = Table(
    "generations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)
"""Each compaction makes a new one of the whole table; the first one is 1. state: planned, written, published."""

files = Table(
    "files",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("generation", Integer, ForeignKey("generations.id"), nullable=False),
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False),
    Column("path", Text, nullable=False),
    Column("stream", Text, nullable=False),
    Column("era", Integer, nullable=False),
    Column("date", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("data_bytes", BigInteger, nullable=False),
    Column("file_bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Index("files_by_run", "generation", "run_id"),
)
"""path: below the run's folder; of a run that is not published, below its staging folder."""
