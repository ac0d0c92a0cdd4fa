"""The database tables of the ledger, the record of all runs of an export. `ledger.py` reads and writes the tables."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, MetaData, Table, Text

LEDGER_VERSION = 1
"""The version of these tables, in SQLite's `user_version`. It rises with each change that older programs cannot read.
"""
APPLICATION_ID = 0x53744C67
"""Marks an SQLite file as a ledger: the ASCII codes of "StLg", stored as `application_id`.

The exporter refuses a file with another id, except 0, the id of a new file.
"""

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
"""The identity of the export, in a single row. `table_id` is also its name in the log of a Delta or Iceberg table."""

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
"""The runs, one row each. AUTOINCREMENT prevents a second use of an id, which would seem to be published already."""

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
"""The generations (versions) of the whole table: the first is 1, and each compaction or repair makes another.

The row of a dropped generation stays, so that no other generation gets its number.
"""
OPEN = ("planned", "written")
"""The states of a generation that an unfinished compaction or repair makes."""

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
"""The Parquet files of all runs, one row each.

path: relative to the folder of the run's files in the table; before publication, to `tree` in the run's staging folder.
"""

losses = Table(
    "losses",
    metadata,
    Column("generation", Integer, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("era", Integer, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("start_index", BigInteger, primary_key=True),
    Column("end_index", BigInteger, nullable=False),
    Column("noted_us", BigInteger, nullable=False),
)
"""The exported indexes whose rows a repair with `--accept-lost` gave up. Earlier ledgers lack this table."""

places = Table("places", metadata, Column("id", Integer, primary_key=True), Column("path", Text, nullable=False))
"""The path of the folder of the export, in a single row, by which a copy is detected. Earlier ledgers lack this table.
"""

owners = Table(
    "owners",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("process", Integer, nullable=False),
    Column("since_us", BigInteger, nullable=False),
)
"""The exporter that is allowed to change the ledger, in a single row; none if a file lock protects the ledger.

owner: a random id of the exporter. `host` and `process` are for error messages. Earlier ledgers lack this table.
"""
