"""Gold: small tables with answers about streams and chains: rates and sizes, latency, gaps, reorganisations."""

from __future__ import annotations

from typing import Any

MINUTE = "1 minute"


def rates(messages: Any, every: str = MINUTE) -> Any:
    """Per stream and minute: messages, bytes, mean_bytes, max_bytes. messages: those of `silver_messages`."""
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
    """Per stream and minute: messages, p50_ms, p99_ms, max_ms between what a publisher says happened and its storing.

    events: anything with stream, timestamp and event_time. Rows without an event_time do not count. Negative
    latencies are clocks that disagree, and are kept.
    """
    from pyspark.sql import functions as f

    passed_ms = (f.unix_micros("timestamp") - f.unix_micros("event_time")) / f.lit(1000.0)
    return (
        events.where("event_time IS NOT NULL")
        .select("stream", "timestamp", passed_ms.alias("ms"))
        .groupBy("stream", f.window("timestamp", every).start.alias("minute"))
        .agg(
            f.count("*").alias("messages"),
            f.percentile_approx("ms", 0.5).alias("p50_ms"),
            f.percentile_approx("ms", 0.99).alias("p99_ms"),
            f.max("ms").alias("max_ms"),
        )
        .orderBy("stream", "minute")
    )


def gaps(rows: Any, place: list[str], number: str) -> Any:
    """Numbers that are missing between others: the columns of `place`, first, last, missing, after (the time of the
    row before) and before (of the row behind).

    Indexes of a partition have a gap where retention was faster than the export; block numbers where a block never
    came. number: the column that counts.
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
    """Per fork that lost: stream, fork_number, depth, blocks, began, ended (when its blocks were stored).

    batches: those of `mark_reorged`. depth: how far above the fork the lost chain had come.
    """
    from pyspark.sql import functions as f

    return (
        batches.where("reorged")
        .groupBy("stream", "fork_number")
        .agg(
            (f.max("number") - f.col("fork_number")).alias("depth"),
            f.count("*").alias("blocks"),
            f.min("timestamp").alias("began"),
            f.max("timestamp").alias("ended"),
        )
        .orderBy("stream", "fork_number")
    )
