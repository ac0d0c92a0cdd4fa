"""Makes the silver table of all messages, with their sizes, their text and the event times that publishers report."""

from __future__ import annotations

from typing import Any

from spark_export.pipeline.bronze import find_header
from spark_export.pipeline.event_time import EVENT_TIME_HEADER


def silver_messages(bronze: Any) -> Any:
    """Returns one row for each message.

    Columns: stream, era, partition, index, timestamp (when stored), key, data_bytes (the size of the data), text,
    event_time. text: the data if it is UTF-8, else null. event_time: from the header `event_time_us`; null without a
    valid header.
    """
    from pyspark.sql import functions as f

    # A header that is no number gives a null time, and does not fail the query.
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
