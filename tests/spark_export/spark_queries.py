"""Runs streaming queries on a machine that may be too busy for Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.errors import StreamingQueryException

from spark_export.session import WORKER_LATE

T = TypeVar("T")
LATE_MAX = 10
"""How often a process of Spark may start too late."""
ENDED_S = 200


def run_query(writer: Any, *place: str) -> Any:
    """Runs a query until it has taken what is there, and returns it. place: the argument of `start`, if any."""

    def run() -> Any:
        query = writer.trigger(availableNow=True).start(*place)
        assert query.awaitTermination(ENDED_S), "the query does not end"
        return query

    return repeat_late(run)


def repeat_late(run: Callable[[], T]) -> T:
    """Calls `run` again after each of its queries that Spark ends because a Python process has not started within ten
    seconds. A query that is started again goes on from its checkpoint."""
    for _ in range(LATE_MAX):
        try:
            return run()
        except StreamingQueryException as error:
            if WORKER_LATE not in str(error):
                raise
    return run()
