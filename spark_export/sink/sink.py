"""Writes the rows of a streaming query as messages: the sink of the format `stream_node`.

With `delivery=exactlyOnce`, the default, each row is stored exactly once, even if Spark or the node is killed at any
moment. The condition is that a repeated micro-batch has the same rows in the same tasks (docs/spark.md). The id of the
query, which is in its checkpoint, identifies the query after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_export.errors import SourceError
from spark_export.sink.writer import commit_written, prepare_streams, write_rows
from spark_export.source.attempts import Attempt
from spark_export.source.options import WriteOptions
from spark_export.source.sent_code import Sendable
from spark_export.source.sent_modules import SOURCE_MODULES

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""The local properties of a Spark task with the id of the streaming query and the number of the micro-batch."""


class StreamSink(Sendable, DataSourceStreamArrowWriter):
    """The writer of one micro-batch; Spark creates one on the driver, and another one to commit."""

    modules = SOURCE_MODULES

    def __init__(self, schema: StructType, options: WriteOptions, overwrite: bool) -> None:
        """Checks columns and options, and creates a missing stream. Raises SourceError."""
        self._ends = prepare_streams(schema, options, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = read_attempt(TaskContext.get()) if self._options.exactly_once else None
        return write_rows(iterator, self._options, attempt, self._ends)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Records in the node that the micro-batch is stored; if Spark repeats it, no row is pushed again."""
        commit_written(messages, self._options, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Does nothing, because a pushed message cannot be removed.

        When Spark repeats the micro-batch, the sink finds the pushed messages and does not push them again.
        """


def read_attempt(context: TaskContext | None) -> Attempt:
    """Returns which execution (`Attempt`) of which task of a streaming query is running. Raises SourceError."""
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        raise SourceError(
            "Spark does not tell this task its query and its micro-batch, so rows cannot be stored exactly once; "
            "use Spark 4.2 or later with a micro-batch trigger, or write with delivery=atLeastOnce"
        )
    return Attempt(f"spark-sink-{query}", int(batch), context.partitionId(), context.attemptNumber() > 0)
