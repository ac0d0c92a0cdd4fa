"""Writes the rows of a DataFrame, or of a streaming query, as messages. The node confirms a row after it has synced it.

A batch write (`StreamWriter`) stores every row at least once, as Spark's Kafka sink does: a repeated task pushes all
rows again. With the option `writeId`, every row is stored exactly once, even if the whole write is repeated.

A streaming query (`StreamSink`) stores each row exactly once, even if Spark or the node is killed at any moment, except
with `delivery=atLeastOnce`. The condition is that a repeated micro-batch has the same rows in the same tasks
(docs/spark.md). The id of the query, which is in its checkpoint, identifies the query after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from spark_export.errors import OptionError, RowsDiffer, SourceError, StreamExists
from spark_export.sink.pushes import Attempt, Pushes, commit_batch, find_ends
from spark_export.sink.write_rows import check_columns, has_stream_column, read_row
from spark_export.source.node import asked
from spark_export.source.options import WriteOptions
from spark_export.source.plan import Place
from spark_export.source.spark_versions import DataSourceStreamArrowWriter

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""The local properties of a Spark task with the id of the streaming query and the number of the micro-batch."""


@dataclass
class SinkWritten(WriterCommitMessage):
    """The result of one task.

    attempt: None if rows are written at least once.
    seen: the numbers of the tasks that stored messages of the batch before this execution.
    """

    counts: dict[Place, int]
    attempt: Attempt | None = None
    seen: set[int] = field(default_factory=set)


class SinkWriter:
    """The base class of the writers of a job and of a micro-batch. The driver creates a missing stream."""

    def __init__(self, schema: StructType, options: WriteOptions, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a stream is never overwritten: write with mode('append'), or outputMode('append')")
        check_columns(schema, options)
        self._options = options
        # The partitions at the beginning of the batch.
        self._ends = asked(options, lambda client: find_ends(client, options, has_stream_column(schema)))

    def write(self, iterator: Iterator[pa.RecordBatch | Row]) -> SinkWritten:
        """Pushes the rows of a task, and waits for all confirmations. Raises SourceError."""
        attempt = self._attempt()
        with Pushes(self._options, attempt, self._ends) as pushes:
            for given in iterator if not pushes.is_committed() else ():
                # Before Spark 4.1, a streaming query has rows in place of Arrow batches.
                for row in given.to_pylist() if isinstance(given, pa.RecordBatch) else [given.asDict(recursive=True)]:
                    taken = read_row(row, self._options)
                    if taken is not None:
                        pushes.push(taken)
            pushes.flush()
            return SinkWritten(pushes.counts, attempt, pushes.seen)

    def _attempt(self) -> Attempt | None:
        """Returns the present execution of a task; None without exactly-once."""
        raise NotImplementedError


class StreamWriter(SinkWriter, DataSourceArrowWriter):
    """The writer of one Spark job."""

    def __init__(self, schema: StructType, options: WriteOptions, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite)
        ends = [each for each in self._ends.values() if each.stream == options.stream]
        stored = sum(each.next_index - each.first_index for each in ends)
        if stored and options.if_exists == "error":
            raise StreamExists(f"the stream {options.stream!r} has {stored} messages, and ifExists is error")
        self._skipped = bool(stored) and options.if_exists == "ignore"

    def write(self, iterator: Iterator[Any]) -> SinkWritten:
        return SinkWritten({}) if self._skipped else super().write(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        commit_written(messages, self._options, self._options.write_version)

    def abort(self, messages: Sequence[Any]) -> None:
        """Does nothing: a pushed message cannot be removed from a stream."""

    def _attempt(self) -> Attempt | None:
        if self._options.write_id is None:
            return None
        context = TaskContext.get()
        task, tried = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        return Attempt(f"spark-write-{self._options.write_id}", self._options.write_version, task, tried > 0)


class StreamSink(SinkWriter, DataSourceStreamArrowWriter):
    """The writer of one micro-batch; Spark creates one on the driver, and another one to commit."""

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        commit_written(messages, self._options, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Does nothing: when Spark repeats the micro-batch, the sink does not push the stored rows again."""

    def _attempt(self) -> Attempt | None:
        return read_attempt(TaskContext.get()) if self._options.exactly_once else None


def commit_written(messages: Sequence[Any], options: WriteOptions, batch: int) -> None:
    """Records at the node that a batch is stored, so that no row is pushed again if Spark repeats it.

    Does nothing if rows are stored at least once. Raises RowsDiffer.
    """
    written = [each for each in messages if isinstance(each, SinkWritten)]
    attempts = [each.attempt for each in written if each.attempt is not None]
    if not attempts:
        return
    gone = sorted(set().union(*(each.seen for each in written)) - {each.task for each in attempts})
    if gone:
        raise RowsDiffer(
            f"batch {batch} had a task {gone[0]} when it was first tried, and has fewer tasks now: its rows may be in "
            "the streams twice; repeat a batch with the settings and the number of cores with which it began"
        )
    places = set[Place]().union(*(each.counts for each in written))
    asked(options, lambda client: commit_batch(client, attempts[0].query, batch, places))


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
