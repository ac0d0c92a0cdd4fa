"""The database tables of the ledger, the record of all runs of an export. `ledger.py` reads and writes the tables."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, MetaData, Table, Text

LEDGER_VERSION = 1
"""The version of these tables, stored as `user_version` in the SQLite file.

It rises with each change that older programs cannot read.
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
"""The identity of the export, in a single row.

table_id: the id of the table, and the name of the export in the log of a Delta or Iceberg table.
"""

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
"""The runs of the exporter, one row each.

AUTOINCREMENT prevents a second use of an id. The exported table contains the ids of its published runs, so a new run
with an old id would seem to be published already."""

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
"""The generations (versions) of the whole exported table.

The first is 1, and each compaction or repair makes another. The row of a dropped generation stays, so that no other
generation gets its number.

state: planned, written, published, or dropped.
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

path: relative to the folder in which the table keeps the files of the run. Before the run is published, the path is
relative to the folder `tree` in the run's staging folder."""

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
"""The exported indexes that are no longer in the table, because a repair with `--accept-lost` gave up their rows.

generation: the generation (version of the table) that the repair made.
noted_us: the time of the repair in microseconds since 1970.

Ledgers of earlier versions lack this database table, and the first repair with losses creates it.
"""

places = Table("places", metadata, Column("id", Integer, primary_key=True), Column("path", Text, nullable=False))
"""The path of the folder of the export, in a single row.

If an export folder was copied, this path is not the path of the copy, so the copy can be detected. Ledgers of earlier
versions lack this database table, and the next run creates it.
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
"""The exporter that is allowed to change the ledger, in a single row. A ledger that a file lock protects has no row.

owner: a random id of the exporter.
host, process: its host name and process id, for error messages.
since_us: when the exporter took over the ledger, in microseconds since 1970.

Ledgers of earlier versions lack this database table.
"""
