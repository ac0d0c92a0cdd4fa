"""Messages of any kind: sizes, text where it is text, and when the publisher says that it happened."""

from __future__ import annotations

from typing import Any

from spark_export.pipeline.bronze import find_header

EVENT_TIME_HEADER = "event_time_us"
"""A publisher may say here when what it reports happened: microseconds since 1970, in decimal digits."""


def silver_messages(bronze: Any) -> Any:
    """stream, partition, index, timestamp, key, data_bytes, text, event_time.

    text: the data where it is UTF-8, else null. event_time: from the header `event_time_us`, null without one.
    """
    from pyspark.sql import functions as f

    # A value that is no number makes no time, and stops no query.
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
