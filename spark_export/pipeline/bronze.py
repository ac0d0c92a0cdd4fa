"""Reads the bronze table from the folder of an export. The table contains the exported messages without changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCHEMA = (
    "partition int, index bigint, timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>>, data binary, era int, run int, stream string, date date"
)
"""The schema of the bronze table. Without it, Spark would convert a stream name such as "7" to a number."""


def read_bronze(spark: Any, folder: Path) -> Any:
    """Returns the messages of an export in plain Parquet files, as a DataFrame of the present version of the table.

    Files of earlier exporters have no column `era`; their rows get the era 0.
    """
    from pyspark.sql import functions as f

    table = spark.read.schema(SCHEMA).parquet(str((folder / "messages").resolve()))
    return table.withColumn("era", f.coalesce("era", f.lit(0)))


def find_header(name: str) -> Any:
    from pyspark.sql import functions as f

    return f.get(f.filter("headers", lambda each: each["key"] == name), f.lit(0))["value"]
