"""Computes the gold tables, small summaries of streams and chains: rates, sizes, latencies, gaps and reorgs."""

from __future__ import annotations

from typing import Any

MINUTE = "1 minute"


def rates(messages: Any, every: str = MINUTE) -> Any:
    """Returns the number and sizes of messages for each stream and each interval (`every`, as in Spark).

    Columns: stream, minute (the start of the interval), messages, bytes, mean_bytes, max_bytes.
    """
    from pyspark.sql import functions as f

    return (
        messages.groupBy("stream", f.window("timestamp", every).start.alias("minute"))
        .agg(
            f.count("*").alias("messages"),
            f.sum("data_bytes").alias("bytes"),
            f.avg("data_bytes").alias("mean_bytes"),
            f.max("data_bytes").alias("max_bytes"),
        )
        .orderBy("stream", "minute")
    )


def latency(events: Any, every: str = MINUTE) -> Any:
    """Returns the time from an event to its storage, for each stream and interval. Rows without `event_time` are
    ignored.

    Columns: stream, minute, messages (their number), p50_ms, p99_ms and max_ms (milliseconds). Negative latencies,
    which result from differing clocks, stay.
    """
    from pyspark.sql import functions as f

    passed_ms = (f.unix_micros("timestamp") - f.unix_micros("event_time")) / f.lit(1000.0)
    return (
        events.where("event_time IS NOT NULL")
        .select("stream", "timestamp", passed_ms.alias("ms"))
        .groupBy("stream", f.window("timestamp", every).start.alias("minute"))
        .agg(
            f.count("*").alias("messages"),
            f.expr("percentile_disc(0.5) WITHIN GROUP (ORDER BY ms)").alias("p50_ms"),
            f.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY ms)").alias("p99_ms"),
            f.max("ms").alias("max_ms"),
        )
        .orderBy("stream", "minute")
    )


def gaps(rows: Any, place: list[str], number: str) -> Any:
    """Returns the ranges of missing numbers in each group `place`, such as indexes of a partition or numbers of blocks.

    Columns: those of `place`; first and last missing number; missing (how many); after and before (the timestamps of
    the rows around the range).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy(*place).orderBy(number)
    once = rows.groupBy(*place, number).agg(f.min("timestamp").alias("timestamp"))
    behind = once.select(
        *place,
        (f.lag(number).over(order) + 1).alias("first"),
        (f.col(number) - 1).alias("last"),
        f.lag("timestamp").over(order).alias("after"),
        f.col("timestamp").alias("before"),
    )
    found = behind.where("first <= last")
    return found.select(*place, "first", "last", f.expr("last - first + 1").alias("missing"), "after", "before")


def reorgs(batches: Any) -> Any:
    """Returns one row for each fork: the blocks that reorgs removed from a chain after the same block.

    Columns: chain, fork_number (of the last common block; null if unknown), depth (the greatest number of a removed
    block minus fork_number), blocks (the number of removed blocks), began and ended (when the first and last were
    stored).
    """
    from pyspark.sql import functions as f

    return (
        batches.where("reorged")
        .groupBy("chain", "fork_number")
        .agg(
            (f.max("number") - f.col("fork_number")).alias("depth"),
            f.count("*").alias("blocks"),
            f.min("timestamp").alias("began"),
            f.max("timestamp").alias("ended"),
        )
        .orderBy("chain", "fork_number")
    )
