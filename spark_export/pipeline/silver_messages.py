"""Silver: messages of any kind, with their sizes, their text and the time of the event that the publisher reports."""

from __future__ import annotations

from typing import Any

from spark_export.pipeline.bronze import find_header

EVENT_TIME_HEADER = "event_time_us"
"""The header in which a publisher may state the time of the event: microseconds since 1970, in decimal digits."""


def silver_messages(bronze: Any) -> Any:
    """stream, partition, index, timestamp, key, data_bytes, text, event_time.

    text: the data if it is UTF-8, else null. event_time: from the header `event_time_us`, null without one.
    """
    from pyspark.sql import functions as f

    # A header that is no number makes the time null; it must not stop the query.
    event_time_us = find_header(EVENT_TIME_HEADER).cast("string").try_cast("bigint")
    return bronze.select(
        "stream",
        "partition",
        "index",
        "timestamp",
        "key",
        f.octet_length("data").alias("data_bytes"),
        f.when(f.is_valid_utf8(f.col("data").cast("string")), f.col("data").cast("string")).alias("text"),
        f.timestamp_micros(event_time_us).alias("event_time"),
    )
