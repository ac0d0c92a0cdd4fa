"""Writes the rows of a streaming query as messages: the sink of the format `stream_node`.

With `delivery=exactlyOnce`, the default, each row is stored exactly once, whatever is killed at whatever moment, if a
repeated micro-batch has the same rows in the same tasks (docs/spark.md). The checkpoint of the query names the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_export.attempts import Attempt
from spark_export.errors import SourceError
from spark_export.options import WriteOptions
from spark_export.writer import commit_written, prepare_streams, write_rows

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""The properties in which Spark tells each task of a streaming query the query's id and the number of the micro-batch.
The query's id is in the file `metadata` of the checkpoint."""


class StreamSink(DataSourceStreamArrowWriter):
    """The writer of a streaming query. Spark makes one on the driver for each micro-batch, and another one to commit
    it."""

    def __init__(self, schema: StructType, options: WriteOptions, overwrite: bool) -> None:
        """Checks columns and options, and creates the stream. Raises SourceError."""
        self._ends = prepare_streams(schema, options, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = read_attempt(TaskContext.get()) if self._options.exactly_once else None
        return write_rows(iterator, self._options, attempt, self._ends)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Records that the micro-batch is stored, so that it is passed over if Spark repeats it after a restart."""
        commit_written(messages, self._options, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Does nothing: a pushed message cannot be removed. The next attempt at the micro-batch finds it."""


def read_attempt(context: TaskContext | None) -> Attempt:
    """Returns the present attempt at a task of a streaming query. Raises SourceError outside of a streaming query."""
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        raise SourceError(
            "Spark does not tell this task its query and its micro-batch, so rows cannot be stored exactly once; "
            "use Spark 4.2 or later with a micro-batch trigger, or write with delivery=atLeastOnce"
        )
    return Attempt(f"spark-sink-{query}", int(batch), context.partitionId(), context.attemptNumber() > 0)
