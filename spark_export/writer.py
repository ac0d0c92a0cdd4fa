"""Writes the rows of a DataFrame as messages: `df.write.format("stream_node")`. The node confirms a row when the
message is on the node's disk.

Every row is written at least once, as by Spark's Kafka sink: if Spark repeats a failed task, the task pushes all its
rows again. A single run of a task stores no row twice, even if the connection breaks. Each message has a sequence
number, so the node recognises a repeated message.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, ShortType, StringType, StructType

from spark_export.errors import BadAnswer, ConnectionBroken, NodeUnreachable, OptionError, SourceError
from spark_export.node_client import NodeConnection, body_of, push_body
from spark_export.node_wire import BareReader, data, optional, partition_of, stream_address, uint
from spark_export.options import WriteOptions
from spark_export.range_reader import RETRY_DELAY_S, pause

PROTOCOL = "node/stream_push/1"
FAILED = "node/push_failed/1"
RETURN_ADDRESS = b"node/1/push-%d"
"""The form of the return addresses of pushes.

To an address that begins with `node/1/`, the node answers a failed push with FAILED, which contains the reason
(docs/wire.md).
"""
OK, ERROR, DUPLICATE, OUT_OF_ORDER = range(4)
OUTCOMES = {0: "is not stored", 1: "is refused", 2: "may have been stored, or not"}
WINDOW_BYTES = 16 * 1024 * 1024
"""The largest total size of unconfirmed pushes, in bytes. The option `window` also limits their number."""
TYPES: dict[str, tuple[type, ...]] = {
    "data": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "stream": (StringType,),
    "partition": (IntegerType, LongType, ShortType),
    "headers": (ArrayType,),
}
"""The columns that a DataFrame to write may have, and the allowed Spark types of each column."""


@dataclass
class Written(WriterCommitMessage):
    """The number of messages that one task pushed, by stream and partition."""

    counts: dict[tuple[str, int], int]


class PushFailed(SourceError):
    """The node did not confirm a message, for example because its disk is full. Spark repeats the task."""


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises OptionError if rows with this schema cannot be written."""
    for field in schema.fields:
        allowed = TYPES.get(field.name)
        if allowed is None:
            raise OptionError(f"the column {field.name!r} cannot be written; there are {', '.join(TYPES)}")
        if not isinstance(field.dataType, allowed):
            raise OptionError(f"the column {field.name!r} is {field.dataType.simpleString()}; it is binary or string")
    names = schema.fieldNames()
    if "data" not in names:
        raise OptionError("there is no column 'data': name the column to push so, binary or string")
    if "stream" not in names and options.stream is None:
        raise OptionError("say where to push: by the option stream, or by a column 'stream'")


class StreamWriter(DataSourceArrowWriter):
    """The writer of one Spark job, which pushes rows in tasks.

    The driver creates the stream of the option `stream` if the stream does not exist.
    """

    def __init__(self, schema: StructType, options: WriteOptions, overwrite: bool) -> None:
        """Checks the columns and options, and creates the stream. Raises OptionError and errors of the connection."""
        if overwrite:
            raise OptionError("a stream is never overwritten: write with mode('append')")
        check_columns(schema, options)
        self._options = options
        if options.stream is not None:
            with NodeConnection(options.endpoint, options.request_timeout_s) as node:
                if options.partitions is not None or not node.list_partitions(options.stream):
                    node.create_stream(options.stream, options.partitions or 1)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with Pushes(self._options) as pushes:
            for batch in iterator:
                for row in batch.to_pylist():
                    pushes.push(row)
            pushes.flush()
            return Written(pushes.counts)

    def commit(self, messages: Sequence[Any]) -> None:
        """Does nothing: all pushed messages are stored already."""

    def abort(self, messages: Sequence[Any]) -> None:
        """Does nothing: a pushed message cannot be removed from a stream."""


class Pushes:
    """The pushes of a single run of a Spark task. Up to `window` pushes wait for the confirmation of the node.

    Invariant: `_unconfirmed` contains, in order, all sent pushes without an answer. After a reconnect these pushes are
    sent again, and the node stores no message a second time. `_retries`: the reconnects since the last answer.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.counts: dict[tuple[str, int], int] = {}
        self._options = options
        self._publisher_id = secrets.token_bytes(16)
        self._partitions: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._unconfirmed: dict[bytes, tuple[tuple[str, int], bytes]] = {}
        self._sent = 0
        self._unconfirmed_bytes = 0
        self._retries = 0
        self._node = NodeConnection(options.endpoint, options.request_timeout_s)

    def __enter__(self) -> Pushes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._node.close()

    def push(self, row: dict[str, Any]) -> None:
        """Pushes one row as a message.

        Waits first if the number or the size of unconfirmed pushes is at the limit. Raises SourceError.
        """
        place = self._place(row)
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        headers = [(_text(each["key"]), _bytes(each["value"]) or b"") for each in row.get("headers") or ()]
        message = _bytes(row["data"])
        if message is None:
            raise OptionError("a row has null in the column 'data'; leave such rows out")
        sequence = optional(data(self._publisher_id) + uint(number))
        body = push_body(number, message, _bytes(row.get("key")), headers) + sequence
        while self._unconfirmed and (
            len(self._unconfirmed) >= self._options.window or self._unconfirmed_bytes + len(body) > WINDOW_BYTES
        ):
            self._kept(self._confirm_one)
        self._kept(lambda: self._send(place, body))

    def flush(self) -> None:
        """Waits until the node has confirmed all sent messages. Raises SourceError."""
        while self._unconfirmed:
            self._kept(self._confirm_one)

    def _place(self, row: dict[str, Any]) -> tuple[str, int]:
        """Returns the stream and partition for a row.

        The stream is the column `stream`, else the option `stream`. The partition is the column `partition`, else
        follows from the key. Rows without both are distributed over all partitions in turn.
        """
        stream = row.get("stream") or self._options.stream
        if stream is None:
            raise OptionError("a row has null in the column 'stream', and there is no option stream")
        count = self._partitions.get(stream)
        if count is None:
            count = self._partitions[stream] = self._count(stream)
        partition = row.get("partition")
        if partition is None and row.get("key") is not None:
            partition = partition_of(_bytes(row["key"]) or b"", count)
        elif partition is None:
            partition = self._turns[stream] = (self._turns.get(stream, -1) + 1) % count
        if not 0 <= partition < count:
            raise OptionError(f"a row is for partition {partition} of {stream!r}, which has {count}")
        return stream, int(partition)

    def _count(self, stream: str) -> int:
        """Returns the number of partitions of a stream. Creates a missing stream with one partition."""
        with NodeConnection(self._options.endpoint, self._options.request_timeout_s) as node:
            found = node.list_partitions(stream)
            if not found:
                node.create_stream(stream, 1)
            return max((each.partition + 1 for each in found), default=1)

    def _send(self, place: tuple[str, int], body: bytes) -> None:
        # The push is recorded before it is sent, so that a reconnect repeats the push if sending fails.
        self._sent += 1
        return_address = RETURN_ADDRESS % self._sent
        self._unconfirmed[return_address] = (place, body)
        self._unconfirmed_bytes += len(body)
        self._node.send(stream_address(*place), PROTOCOL, body, return_address)

    def _confirm_one(self) -> None:
        answer = self._node.receive()
        self._retries = 0
        sent = self._unconfirmed.pop(answer.return_address, None)
        if sent is None:
            return
        place, body = sent
        self._unconfirmed_bytes -= len(body)
        if answer.protocol == FAILED:
            failure = BareReader(body_of(answer, FAILED))
            failure.uint()
            what = OUTCOMES.get(failure.uint(), "was not confirmed")
            raise PushFailed(f"{self._node.endpoint}: a message of {place[0]}/{place[1]} {what}: {failure.text()}")
        reader = BareReader(body_of(answer, PROTOCOL))
        _, status, _, _ = (reader.uint() for _ in range(4))
        if status == ERROR:
            where = f"{place[0]}/{place[1]}"
            raise PushFailed(
                f"{self._node.endpoint} answers ERROR to a message of {where}, without a reason; see its log"
            )
        if status not in (OK, DUPLICATE):
            raise BadAnswer(f"{place[0]}/{place[1]}: the node answered status {status} to a push")
        self.counts[place] = self.counts.get(place, 0) + 1

    def _kept(self, step: Any) -> None:
        """Calls `step`.

        If the connection breaks during the call, connects again and sends all unconfirmed pushes again; `step` is not
        repeated.
        """
        try:
            step()
        except ConnectionBroken as error:
            self._reconnect(error)

    def _reconnect(self, reason: Exception) -> None:
        while self._retries < self._options.fetch_retries:
            self._retries += 1
            pause(RETRY_DELAY_S)
            self._node.close()
            try:
                self._node = NodeConnection(self._options.endpoint, self._options.request_timeout_s)
                for return_address, (place, body) in self._unconfirmed.items():
                    self._node.send(stream_address(*place), PROTOCOL, body, return_address)
                return
            except (ConnectionBroken, NodeUnreachable) as error:
                reason = error
        raise NodeUnreachable(f"pushes have no answer, tried {self._options.fetch_retries} times more: {reason}")


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
