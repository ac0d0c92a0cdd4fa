"""Reads the bronze table, which contains exported messages as stored, from the folder of an export.

This module decodes no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCHEMA = (
    "partition int, index bigint, timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, data binary, era int, run int, stream string, date date"
)
"""The columns in the Parquet files, then the columns in the names of their folders. Without this schema, Spark would
read the stream name "7" as a number."""


def read_bronze(spark: Any, folder: Path) -> Any:
    """Returns the table of an export in plain Parquet files.

    The link `messages` is resolved once, in this call. If a compaction changes the link later, this table still reads
    the earlier files. Files of earlier versions have no column `era`; their rows get the era 0.
    """
    from pyspark.sql import functions as f

    table = spark.read.schema(SCHEMA).parquet(str((folder / "messages").resolve()))
    return table.withColumn("era", f.coalesce("era", f.lit(0)))


def find_header(name: str) -> Any:
    """Returns a column with the value of the first header named `name`; null for a message without this header."""
    from pyspark.sql import functions as f

    return f.get(f.filter("headers", lambda each: each["key"] == name), f.lit(0))["value"]
