"""Reads the id of the export in a folder, by which the pipeline detects another export."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from spark_export.exporter.errors import ExportError, ExportMismatch
from spark_export.exporter.tables.layout import LEDGER
from spark_export.exporter.tables.parquet_table import run_folder


def read_export_id(export: Path) -> str | None:
    """Returns the id of the export in this folder; None without a ledger. Raises ExportMismatch, ExportError."""
    ledger = export.absolute() / LEDGER
    if not ledger.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT table_id, format FROM export").fetchone()
    except sqlite3.Error as error:
        raise ExportError(f"cannot read {ledger}: {error}") from error
    if row is None:
        return None
    table_id, table_format = row
    if table_format != "parquet":
        raise ExportMismatch(f"{export} is a {table_format} table: the pipeline reads exports in plain Parquet files")
    return str(table_id)


def read_checksums(export: Path, root: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file in the ledger, by its path below `root`; {} without one. Raises ExportError."""
    ledger = export.absolute() / LEDGER
    if not ledger.is_file() or not root.name.isdigit():
        return {}
    try:
        with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT run_id, path, sha256 FROM files WHERE generation = ?", (int(root.name),))
            return {f"{run_folder(run)}/{path}": sha256 for run, path, sha256 in rows}
    except sqlite3.Error as error:
        raise ExportError(f"cannot read {ledger}: {error}") from error
