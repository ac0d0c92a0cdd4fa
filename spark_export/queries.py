"""Runs streaming queries. A function of this process gets each micro-batch, and commits it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_export.work_folder import work_folder


@contextmanager
def open_query(rows: Any, take: Callable[[Any], None], **trigger: Any) -> Iterator[Any]:
    """Starts a streaming query, and stops it at the end of the `with` block. Raises the error of `take` or of Spark.

    rows: a streaming DataFrame. take: is called with each micro-batch, and commits it. trigger: the arguments
    of Spark's method `trigger`. The query has a checkpoint of its own, which is removed at the end.
    """
    failed: list[Exception] = []

    def guarded(batch: Any, number: int) -> None:
        try:
            take(batch)
        except Exception as error:
            # Spark reports the error as a text only.
            failed.append(error)
            raise

    checkpoint = tempfile.mkdtemp(prefix="query-", dir=work_folder())
    try:
        # Without the scheme, Spark would look for the folder in its default file system, such as HDFS.
        writer = rows.writeStream.foreachBatch(guarded).option("checkpointLocation", f"file://{checkpoint}")
        query = writer.trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()
    except Exception as error:
        if failed:
            raise failed[0] from error
        raise
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
