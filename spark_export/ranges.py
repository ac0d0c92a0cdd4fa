"""Reads a range of one stream, chosen by partition, index and time, without reading the rest."""

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
    """Returns a DataFrame with the messages of a stream that are in a range. Tasks read nothing else from the node.

    Filters of Spark (`where`) choose the same rows, and read everything. partition: one partition or several; None for
    all. index: the first index, and the index after the last one, of each of the partitions; needs `partition`. time:
    messages that were stored at the first time or later, and before the second one; a time without a zone is UTC.
    options: more options of the read, such as `endpoint`. Raises OptionError.
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
        # Whole milliseconds, so that no message is left out; the filter below is exact.
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
    """Milliseconds since 1970, rounded down."""
    return (_aware(time) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
