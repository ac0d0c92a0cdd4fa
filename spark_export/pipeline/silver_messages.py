"""Builds the silver table of all messages with Spark."""

from __future__ import annotations

from typing import Any

from spark_export.pipeline.bronze import find_header
from spark_export.pipeline.event_time import EVENT_TIME_HEADER


def silver_messages(bronze: Any) -> Any:
    """Returns one row for each message.

    Columns: stream, era, partition, index, timestamp (when stored), key, data_bytes, text (the data if it is UTF-8,
    else null), event_time (from the header `event_time_us`).
    """
    from pyspark.sql import functions as f

    # If the header is not a number, the time is null, and the query does not fail.
    event_time_us = find_header(EVENT_TIME_HEADER).cast("string").try_cast("bigint")
    return bronze.select(
        "stream",
        "era",
        "partition",
        "index",
        "timestamp",
        "key",
        f.octet_length("data").alias("data_bytes"),
        f.when(f.is_valid_utf8(f.col("data").cast("string")), f.col("data").cast("string")).alias("text"),
        f.timestamp_micros(event_time_us).alias("event_time"),
    )
