"""Writes the rows of a DataFrame as messages: `df.write.format("stream_node")`.

The node confirms a row after it has synced the message to disk.

Without the option `writeId`, every row is written at least once, as by Spark's Kafka sink: if Spark repeats a failed
task, the task pushes all its rows again. With `writeId`, every row is written exactly once, even if the whole write is
repeated (`spark_export.source.attempts`). A single execution of a task stores no row twice, even if the connection
breaks: each message has a sequence number, by which the node recognises a repeated message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_export.errors import OptionError, StreamExists
from spark_export.sink.pushes import Pushes
from spark_export.sink.sink_record import Place, commit_batch
from spark_export.sink.write_rows import check_columns, has_stream_column, read_row
from spark_export.source.attempts import Attempt, check_tasks
from spark_export.source.node_client import NodeConnection
from spark_export.source.options import WriteOptions
from spark_export.source.sent_code import Sendable
from spark_export.source.sent_modules import SOURCE_MODULES

Ends = dict[Place, tuple[int, int]]
"""The first index and the next index of each partition at the beginning of a batch."""


@dataclass
class Written(Sendable, WriterCommitMessage):
    """The result of one task.

    query: the name of the query or write, as in `Attempt`; None if rows are written at least once.
    seen: the numbers of the tasks that stored messages of the batch before this execution.
    """

    modules = SOURCE_MODULES
    # Spark unpickles the writer first.
    follows = True

    counts: dict[Place, int]
    task: int = 0
    query: str | None = None
    seen: set[int] = field(default_factory=set)


def prepare_streams(schema: StructType, options: WriteOptions, overwrite: bool) -> Ends:
    """Checks the columns, and creates a missing stream. Returns the first and next index of each partition.

    Raises OptionError, also for a write that replaces the stream, and errors of the connection.
    """
    if overwrite:
        raise OptionError("a stream is never overwritten: write with mode('append'), or outputMode('append')")
    check_columns(schema, options)
    with NodeConnection.to(options) as node:
        if options.stream is not None:
            found = node.list_partitions(options.stream)
            if options.partitions is not None or not found:
                node.create_stream(options.stream, options.partitions or 1)
                found = node.list_partitions(options.stream)
        if has_stream_column(schema):
            found = list(node.list_streams())
        return {(each.stream, each.partition): (each.first_index, each.next_index) for each in found}


def write_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, attempt: Attempt | None, ends: Mapping[Place, Any]
) -> Written:
    """Pushes the rows of a task, and waits for all confirmations; without `attempt`, rows are stored at least once.
    Raises SourceError."""
    with Pushes(options, attempt, ends) as pushes:
        if not pushes.is_committed():
            for batch in batches:
                for row in batch.to_pylist():
                    taken = read_row(row, options)
                    if taken is not None:
                        pushes.push(taken)
            pushes.flush()
        if attempt is None:
            return Written(pushes.counts)
        return Written(pushes.counts, attempt.task, attempt.query, pushes.seen)


def commit_written(messages: Sequence[Any], options: WriteOptions, batch: int) -> None:
    """Saves at the node that a batch is completely stored, if exactly once. Raises RowsDiffer."""
    written = [each for each in messages if isinstance(each, Written) and each.query is not None]
    if not written or written[0].query is None:
        return
    check_tasks(set().union(*(each.seen for each in written)), (each.task for each in written), batch)
    with NodeConnection.to(options) as node:
        commit_batch(node, written[0].query, batch, set().union(*(each.counts for each in written)))


class StreamWriter(Sendable, DataSourceArrowWriter):
    """The writer of one Spark job. The driver creates a missing stream, and tasks push the rows."""

    modules = SOURCE_MODULES

    def __init__(self, schema: StructType, options: WriteOptions, overwrite: bool) -> None:
        """Checks columns and options, and creates the stream. Raises SourceError, such as StreamExists."""
        self._ends = prepare_streams(schema, options, overwrite)
        self._options = options
        stored = sum(
            next_index - first for (stream, _), (first, next_index) in self._ends.items() if stream == options.stream
        )
        if stored and options.if_exists == "error":
            raise StreamExists(f"the stream {options.stream!r} has {stored} messages, and ifExists is error")
        self._skipped = bool(stored) and options.if_exists == "ignore"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._skipped:
            return Written({})
        return write_rows(iterator, self._options, self._attempt(), self._ends)

    def commit(self, messages: Sequence[Any]) -> None:
        """Records in the node that a write with a `writeId` is complete. The tasks have pushed all messages."""
        commit_written(messages, self._options, self._options.write_version)

    def abort(self, messages: Sequence[Any]) -> None:
        """Does nothing: a pushed message cannot be removed from a stream."""

    def _attempt(self) -> Attempt | None:
        """Returns the present execution of a task as an `Attempt`, or None for a write without a `writeId`."""
        if self._options.write_id is None:
            return None
        from pyspark import TaskContext

        context = TaskContext.get()
        task, tried = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        return Attempt(f"spark-write-{self._options.write_id}", self._options.write_version, task, tried > 0)
