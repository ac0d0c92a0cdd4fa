"""Reads the bronze table from the folder of an export. The table contains the exported messages without changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCHEMA = (
    "partition int, index bigint, timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, data binary, era int, run int, stream string, date date"
)
"""The schema of the bronze table: the columns in the Parquet files, then the columns in the folder names.

Without this schema, Spark would convert a stream name such as "7" to a number.
"""


def read_bronze(spark: Any, folder: Path) -> Any:
    """Returns the messages of an export in plain Parquet files, as a DataFrame.

    The DataFrame reads the folder to which the link `messages` leads during this call, even if a compaction changes the
    link later. Files of earlier exporters have no column `era`, which counts how often the stream was deleted and
    created again; their rows get the era 0.
    """
    from pyspark.sql import functions as f

    table = spark.read.schema(SCHEMA).parquet(str((folder / "messages").resolve()))
    return table.withColumn("era", f.coalesce("era", f.lit(0)))


def find_header(name: str) -> Any:
    """Returns a Spark column with the value of the first header `name`; null for a message without this header."""
    from pyspark.sql import functions as f

    return f.get(f.filter("headers", lambda each: each["key"] == name), f.lit(0))["value"]
