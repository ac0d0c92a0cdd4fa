"""Runs streaming queries on a machine that may be too busy for Spark."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException

from spark_export.session import WORKER_LATE

LATE_MAX = 10
"""How often a process of Spark may start too late."""
ENDED_S = 200


def run_query(writer: Any, *place: str) -> Any:
    """Runs a query until it has taken what is there, and returns it. place: the argument of `start`, if any.

    Spark ends a query whose Python process has not started within ten seconds. The query is then started again, from
    its checkpoint.
    """
    for attempt in range(LATE_MAX):
        query = writer.trigger(availableNow=True).start(*place)
        try:
            assert query.awaitTermination(ENDED_S), "the query does not end"
            break
        except StreamingQueryException as error:
            if WORKER_LATE not in str(error) or attempt + 1 == LATE_MAX:
                raise
    return query
