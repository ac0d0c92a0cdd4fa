"""Computes the gold tables, small summaries of streams and chains: rates, sizes, latencies, gaps and reorgs."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as f

from spark_export.pipeline.silver import STREAM_PREFIX

MINUTE = "1 minute"


def _by_interval(rows: Any, every: str) -> Any:
    return rows.groupBy("stream", f.window("timestamp", every).start.alias("minute"))


def rates(messages: Any, every: str = MINUTE) -> Any:
    """Returns the number and sizes of messages for each stream and each interval (`every`, as in Spark).

    Columns: stream, minute (the start of the interval), messages, bytes, mean_bytes, max_bytes.
    """
    return _by_interval(messages, every).agg(
        f.count("*").alias("messages"),
        f.sum("data_bytes").alias("bytes"),
        f.avg("data_bytes").alias("mean_bytes"),
        f.max("data_bytes").alias("max_bytes"),
    )


def latency(events: Any, every: str = MINUTE) -> Any:
    """Returns the time from an event to its storage, for each stream and interval, of the rows with an `event_time`.

    Columns: stream, minute, messages (their number), p50_ms, p99_ms and max_ms (milliseconds; negative if clocks
    differ).
    """
    # A publisher chooses the event time: with the earliest possible time, the difference is too large for a number.
    passed_us = f.try_subtract(f.unix_micros("timestamp"), f.unix_micros("event_time"))
    passed_ms = (passed_us / f.lit(1000.0)).alias("ms")
    known = events.where("event_time IS NOT NULL").select("stream", "timestamp", passed_ms)
    return _by_interval(known.where("ms IS NOT NULL"), every).agg(
        f.count("*").alias("messages"),
        f.expr("percentile_disc(0.5) WITHIN GROUP (ORDER BY ms)").alias("p50_ms"),
        f.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY ms)").alias("p99_ms"),
        f.max("ms").alias("max_ms"),
    )


def spans(rows: Any, place: list[str]) -> Any:
    """Joins adjacent and overlapping spans of numbers in each group `place`, such as the indexes of a partition.

    Columns: those of `place`; first and last number; began and ended (the timestamps of their rows). Joined spans can
    be joined again, so an increment needs only the spans of the rows before it.
    """
    order = Window.partitionBy(*place).orderBy("first", "last")
    reached = f.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    is_new = f.coalesce(f.col("first") > reached + 1, f.lit(True)).cast("int")
    return (
        rows.select(*place, "first", "last", "began", "ended", is_new.alias("is_new"))
        .withColumn("span", f.sum("is_new").over(order.rowsBetween(Window.unboundedPreceding, 0)))
        .groupBy(*place, "span")
        .agg(
            f.min("first").alias("first"),
            f.max("last").alias("last"),
            f.min(f.struct("first", "began"))["began"].alias("began"),
            f.min(f.struct(-f.col("last"), f.col("ended")))["ended"].alias("ended"),
        )
        .drop("span")
    )


def points(rows: Any, place: list[str], number: str) -> Any:
    """Returns each row as a span of one number, which `spans` can join."""
    column, time = f.col(number), f.col("timestamp")
    return rows.select(*place, column.alias("first"), column.alias("last"), time.alias("began"), time.alias("ended"))


def gaps(spans: Any, place: list[str]) -> Any:
    """Returns the ranges of missing numbers between the spans of each group `place`.

    Columns: those of `place`; first and last missing number; missing (how many); after and before (the timestamps of
    the rows around the range).
    """
    order = Window.partitionBy(*place).orderBy("first")
    behind = spans.select(
        *place,
        (f.lag("last").over(order) + 1).alias("first"),
        (f.col("first") - 1).alias("last"),
        f.lag("ended").over(order).alias("after"),
        f.col("began").alias("before"),
    )
    found = behind.where("first IS NOT NULL")
    return found.select(*place, "first", "last", f.expr("last - first + 1").alias("missing"), "after", "before")


def reorgs(batches: Any) -> Any:
    """Returns one row for each fork: a summary of the blocks that reorgs removed from a chain after the same block.

    Columns: chain, fork_number (of the last common block; null if unknown), depth (the greatest number of a removed
    block minus fork_number), blocks (how many), began and ended (when the first and last were stored).
    """
    lost = batches.where("reorged").groupBy("chain", "fork_number")
    return lost.agg(
        (f.max("number") - f.col("fork_number")).alias("depth"),
        f.count("*").alias("blocks"),
        f.min("timestamp").alias("began"),
        f.max("timestamp").alias("ended"),
    )


def events(messages: Any, blocks: Any) -> Any:
    """Returns the rows that `latency` counts: messages, and blocks, which count for the stream that stores them."""
    stored = messages.select("stream", "timestamp", "event_time")
    stream = f.concat(f.lit(STREAM_PREFIX), "chain").alias("stream")
    return stored.unionByName(blocks.select(stream, "timestamp", "event_time"))
