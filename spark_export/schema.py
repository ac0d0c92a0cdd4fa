"""The columns of the source, for Spark and for Arrow, and record batches that have exactly these. It decodes no data.

Spark checks the first batch of a task against the declared schema, nullability too, and none after it: a second one
that differs dies without saying why. So every batch is made here, from one schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_export.errors import BadAnswer
from spark_export.node_wire import BareReader, StoredMessage, read_headers
from spark_export.options import ReadOptions
from storage.checksum import checksum_full, seed_base

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADER = StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), False)])
ARROW_HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)]),
        False,
    )
)


def spark_schema(options: ReadOptions, extra: Sequence[StructField] = ()) -> StructType:
    """What a read with these options gives. extra: columns of a decoder, put last."""
    fields = [StructField("key", BinaryType(), True)]
    if options.include_data:
        fields.append(StructField("data", BinaryType(), False))
    fields += [
        StructField("stream", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("index", LongType(), False),
        StructField("timestamp", TimestampType(), False),
    ]
    if options.include_headers:
        fields.append(StructField("headers", ArrayType(HEADER, False), True))
    return StructType([*fields, *extra])


def arrow_schema(options: ReadOptions) -> pa.Schema:
    """The same for Arrow, without a decoder's columns."""
    fields = [pa.field("key", pa.binary(), True)]
    if options.include_data:
        fields.append(pa.field("data", pa.binary(), False))
    fields += [
        pa.field("stream", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("index", pa.int64(), False),
        pa.field("timestamp", TIMESTAMP, False),
    ]
    if options.include_headers:
        fields.append(pa.field("headers", ARROW_HEADERS, True))
    return pa.schema(fields)


def batch_of_messages(
    messages: Sequence[StoredMessage], stream: str, partition: int, options: ReadOptions
) -> pa.RecordBatch:
    """Messages of a plain page as a batch of `arrow_schema`; headers are null where a message has none."""
    columns = {
        "key": pa.array([each.key for each in messages], pa.binary()),
        "index": pa.array([each.index for each in messages], pa.int64()),
        "timestamp": pa.array([each.time_us for each in messages], TIMESTAMP),
    }
    if options.include_data:
        columns["data"] = pa.array([each.data for each in messages], pa.binary())
    if options.include_headers:
        columns["headers"] = headers_column([each.headers for each in messages])
    return with_place(columns, len(messages), stream, partition, arrow_schema(options))


def batch_of_columns(page: pa.RecordBatch, stream: str, partition: int, options: ReadOptions) -> pa.RecordBatch:
    """The columns of a bulk page (docs/wire.md) as a batch of `arrow_schema`; those that need no change as they are."""
    rows, names = page.num_rows, page.schema.names
    columns = {
        "key": page.column("key") if "key" in names else pa.nulls(rows, pa.binary()),
        "index": page.column("index"),
        "timestamp": page.column("time_us").cast(TIMESTAMP),
    }
    if options.include_data:
        columns["data"] = page.column("data")
    if options.include_headers:
        beside = page.column("beside").to_pylist() if "beside" in names else []
        stored = [[] if each is None else read_headers(BareReader(memoryview(each))) for each in beside]
        columns["headers"] = headers_column(stored) if stored else pa.nulls(rows, ARROW_HEADERS)
    return with_place(columns, rows, stream, partition, arrow_schema(options))


def check_batch(stream_id: int, page: pa.RecordBatch) -> None:
    """That every message of a bulk page is what was written. Raises BadAnswer, which names the first that is not."""
    nothing = [None] * page.num_rows
    keys = page.column("key").to_pylist() if "key" in page.schema.names else nothing
    beside = page.column("beside").to_pylist() if "beside" in page.schema.names else nothing
    plain = (page.column(name).to_pylist() for name in ("index", "time_us", "checksum", "data"))
    for index, time_us, checksum, data, key, headers in zip(*plain, keys, beside, strict=True):
        if checksum != checksum_full(seed_base(stream_id, time_us), index, data, key, headers):
            raise BadAnswer(f"message {index} is not what was written (its checksum differs); run `stream-node verify`")


def headers_column(headers: Sequence[Sequence[tuple[str, bytes]]]) -> pa.Array:
    """The column `headers` of messages; null where there are none, as Spark's Kafka source has it."""
    listed = [[{"key": name, "value": value} for name, value in each] or None for each in headers]
    return pa.array(listed, ARROW_HEADERS)


def with_place(
    columns: dict[str, pa.Array], rows: int, stream: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """A batch of that schema, with the stream and the partition that all its rows have."""
    columns["stream"] = pa.repeat(pa.scalar(stream, pa.string()), rows)
    columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
