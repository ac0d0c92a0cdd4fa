"""Bronze: messages as they are stored, from an export's folder. It decodes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCHEMA = (
    "partition int, index bigint, timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, data binary, run int, stream string, date date"
)
"""Columns of the files, then those of their folders. They are stated, because Spark would take a stream named 7 for a
number."""


def read_bronze(spark: Any, folder: Path) -> Any:
    """The table of a plain Parquet export.

    The link to the table is followed here, once: files that a compaction replaces meanwhile stay readable.
    """
    return spark.read.schema(SCHEMA).parquet(str((folder / "messages").resolve()))


def find_header(name: str) -> Any:
    """The first header of this name as a column; null for messages without one. Names may repeat."""
    from pyspark.sql import functions as f

    return f.get(f.filter("headers", lambda each: each["key"] == name), f.lit(0))["value"]
