"""Builds the silver table of all messages with Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as f

EVENT_TIME_HEADER = "event_time_us"
"""The message header in which a publisher can report the time of an event: microseconds since 1970, in digits."""


def silver_messages(bronze: Any) -> Any:
    """Returns one row for each message.

    Columns: stream, era, partition, index, timestamp (when stored), key, data_bytes, text (the data if it is UTF-8,
    else null), event_time (from the header `event_time_us`).
    """
    header = f.get(f.filter("headers", lambda each: each["key"] == EVENT_TIME_HEADER), f.lit(0))["value"]
    text = f.col("data").cast("string")
    return bronze.select(
        *("stream", "era", "partition", "index", "timestamp", "key"),
        f.octet_length("data").alias("data_bytes"),
        f.when(f.is_valid_utf8(text), text).alias("text"),
        # If the header is not a number, the time is null, and the query does not fail.
        f.timestamp_micros(header.cast("string").try_cast("bigint")).alias("event_time"),
    )
