"""Computes the lag of a streaming query: how many messages of its streams the query has not read yet.

In Spark 4.3 a Python data source cannot add values to `sources[0].metrics` of a query's progress. So this module
subtracts the offsets in the progress. The values have the names of Spark's Kafka source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from pyspark.sql.streaming import listener

from spark_export.source.plan import count_between, from_offsets

Report: TypeAlias = Callable[[listener.StreamingQueryProgress, dict[str, float]], None]


def offsets_behind_latest(*sources: listener.SourceProgress) -> dict[str, float]:
    """Returns the average, largest and smallest lag of the partitions of these sources, in messages.

    sources: elements of `sources` in the progress of a query. A source without offsets, or with offsets of another
    format, does not count. The result is empty if no source counts.
    """
    lags = list[int]()
    for source in sources:
        # Offsets are a JSON text or its parsed object, perhaps of another format.
        with suppress(AttributeError, TypeError, ValueError):
            reached, last = (
                from_offsets(json.loads(each) if isinstance(each, str) else each)
                for each in (source.endOffset, source.latestOffset)
            )
            lags += [count_between(reached, {place: at}) for place, at in last.items()] if reached else []
    found = {"avg": sum(lags) / len(lags), "max": max(lags), "min": min(lags)} if lags else {}
    return {f"{name}OffsetsBehindLatest": value for name, value in found.items()}


class LagListener(listener.StreamingQueryListener):
    """Computes the lag of each streaming query of a session, of all its sources together, after each micro-batch.

    Add the listener to `spark.streams`.

    lags: the latest lag of each running query, by query name, or by query id if the query has no name.
    report: a function that is called with the progress and the lag after each micro-batch.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.lags: dict[str, dict[str, float]] = {}
        self._report = report
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:
        progress = event.progress
        if lag := offsets_behind_latest(*progress.sources):
            self.lags[progress.name or str(progress.id)] = lag
            if self._report is not None:
                self._report(progress, lag)

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:
        self.lags.pop(self._names.pop(str(event.id), str(event.id)), None)
