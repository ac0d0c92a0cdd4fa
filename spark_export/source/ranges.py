"""Reads a part of one stream, chosen by partition and by index or time, without reading the other messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_export.errors import OptionError


def read_range(
    spark: Any,
    stream: str,
    *,
    partition: int | Sequence[int] | None = None,
    index: tuple[int, int] | None = None,
    time: tuple[datetime, datetime] | None = None,
    **options: str,
) -> Any:
    """Returns a DataFrame with the messages of a stream in the given range. Raises OptionError.

    Spark tasks read only this range. A Spark filter (`where`) would give the same rows, but would read the whole
    stream.

    With both `index` and `time`, tasks read the index range and then filter by time.

    partition: one partition or several partitions; None for all.
    index: the first and the end index, the same for each partition; the end is not included. It needs `partition`.
    time: the first and the last time of storing the messages; the last is not included. A time without a zone is UTC.
    options: more options of the read, such as `endpoint`.
    """
    chosen = {"subscribe": stream}
    parts = [partition] if isinstance(partition, int) else list(partition or ())
    if partition is not None:
        chosen = {"assign": json.dumps({stream: parts})}
    if index is not None:
        if not parts:
            raise OptionError("read_range: index=(first, end) needs partition=…: each partition counts for itself")
        first, end = ({stream: dict.fromkeys(map(str, parts), number)} for number in index)
        chosen |= {"startingOffsets": json.dumps(first), "endingOffsets": json.dumps(end)}
    elif time is not None:
        # The options have whole milliseconds, so this range may be up to 1 ms too large. The filter below is exact.
        start_ms, end_ms = _milliseconds(time[0]), _milliseconds(time[1]) + 1
        chosen |= {"startingTimestamp": str(start_ms), "endingTimestamp": str(end_ms)}
        chosen |= {"startingOffsetsByTimestampStrategy": "latest"}
    frame = spark.read.format("stream_node").options(**{**options, **chosen}).load()
    if time is None:
        return frame
    from pyspark.sql import functions

    after, before = (functions.lit(_aware(each)) for each in time)
    return frame.where((frame["timestamp"] >= after) & (frame["timestamp"] < before))


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _milliseconds(time: datetime) -> int:
    return (_aware(time) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
