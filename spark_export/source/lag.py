"""Computes the lag of a streaming query: how many messages of its streams the query has not read yet.

The values have the names of Spark's Kafka source. In Spark 4.3 a Python data source cannot add values to
`sources[0].metrics` of a query's progress. The progress contains the offsets that the query has reached and the latest
offsets of the streams. This module subtracts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql.streaming import listener

from spark_export.source.plan import count_between, from_offsets


def offsets_behind_latest(*sources: listener.SourceProgress) -> dict[str, float]:
    """Returns `avgOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `minOffsetsBehindLatest` of a query.

    sources: elements of `sources` in the progress of the query, one or several. The values are the average, the largest
    and the smallest lag of a partition of all these sources, in messages. A source without offsets, or with offsets of
    another format, does not count. The result is empty if no source counts.
    """
    lags = [lag for source in sources for lag in _lags(source)]
    if not lags:
        return {}
    return {
        "avgOffsetsBehindLatest": sum(lags) / len(lags),
        "maxOffsetsBehindLatest": max(lags),
        "minOffsetsBehindLatest": min(lags),
    }


class LagListener(listener.StreamingQueryListener):
    """A listener that computes the lag of every streaming query of a session after each micro-batch.

    Add the listener to `spark.streams`. The lag is that of all sources of a query together. For the lag of one source,
    call `offsets_behind_latest` with this source.

    lags: the latest lag of each running query, by query name, or by query id if the query has no name.
    report: a function that is called with the progress and the lag after each micro-batch; None: no function is called.
    """

    def __init__(
        self, report: Callable[[listener.StreamingQueryProgress, dict[str, float]], None] | None = None
    ) -> None:
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


def _lags(source: listener.SourceProgress) -> list[int]:
    # Offsets are a JSON text or its parsed object, perhaps of another format.
    try:
        reached, last = (
            from_offsets(json.loads(each) if isinstance(each, str) else each)
            for each in (source.endOffset, source.latestOffset)
        )
    except (AttributeError, TypeError, ValueError):
        return []
    if not reached:
        return []
    return [count_between({at: reached[at]} if at in reached else {}, {at: last[at]}) for at in last]
