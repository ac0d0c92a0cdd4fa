"""The columns of messages for Arrow. This module makes record batches with exactly these columns, without PySpark.

Spark compares only the first batch of a task with the declared schema, including nullability. A later batch that
differs fails without a helpful error. So this module makes all batches from one schema. It does not decode the data of
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_export.errors import BadAnswer
from spark_export.source.options import ReadOptions
from spark_export.tables.columns import HEADERS, ROWS
from stream_client.arrow import ArrowBatches
from stream_service.extensions import Header, RichMessage, decode_extras
from stream_storage.checksum import checksum_full, seed_base

KAFKA_HEADERS = pa.list_(pa.struct([field.with_nullable(True) for field in HEADERS.value_type]))

NULL_HEADER = "node/null/1"
"""The name of the header that marks an empty message as a row with null data (option `nulls=mark`)."""
MARKED = "marked"
"""The internal column that says which messages have the header `NULL_HEADER`."""

KAFKA_NAMES = {"key": "key", "data": "value", "stream": "topic", "partition": "partition", "index": "offset"}
"""Maps column names to those of Spark's Kafka source, in its order. `timestamp` and `headers` are the same in both."""
LOG_APPEND_TIME = 1
"""The value of `timestampType`: the time of storing. Kafka's 0, CreateTime, would mean a publisher's time."""


def arrow_schema(options: ReadOptions) -> pa.Schema:
    """Returns the Arrow schema of a read, under the names of this format and without the columns of a decoder."""
    names = ("key", *(["data"] if options.include_data else []), "stream", "partition", "index", "timestamp")
    fields = [ROWS.field(name) for name in (*names, *(["headers"] if options.include_headers else []))]
    return pa.schema([*fields, *([pa.field(MARKED, pa.bool_(), False)] if options.marks else [])])


def requested_schema(options: ReadOptions) -> pa.Schema:
    """Returns the schema of a read under the names that the option `columns` chooses, without a decoder's columns."""
    own = arrow_schema(replace(options, marks=False))
    if not options.kafka_columns:
        return own
    fields = [pa.field(KAFKA_NAMES.get(each.name, each.name), each.type) for each in own]
    if options.include_headers:
        fields[-1] = pa.field("headers", KAFKA_HEADERS)
    fields.insert(own.get_field_index("timestamp") + 1, pa.field("timestampType", pa.int32()))
    return pa.schema(fields)


def batch_of_messages(
    messages: Sequence[RichMessage], stream: str, partition: int, options: ReadOptions
) -> pa.RecordBatch:
    """Returns the messages of a pull as a record batch with the schema of `arrow_schema`."""
    made, schema = ArrowBatches(stream, partition, None).batch(messages), arrow_schema(options)
    columns = dict(zip(made.schema.names, made.columns, strict=True))
    columns[MARKED] = pa.array([is_marked(each.headers) for each in messages], pa.bool_())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def batch_of_columns(page: pa.RecordBatch, stream: str, partition: int, options: ReadOptions) -> pa.RecordBatch:
    """Returns a bulk page (docs/wire.md) as a batch of `arrow_schema`. Unchanged columns are not copied."""
    rows, names, schema = page.num_rows, page.schema.names, arrow_schema(options)
    columns = {
        "stream": pa.repeat(pa.scalar(stream, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "key": page.column("key") if "key" in names else pa.nulls(rows, pa.binary()),
        "index": page.column("index"),
        "timestamp": page.column("time_us").cast(schema.field("timestamp").type),
    }
    if options.include_data:
        columns["data"] = page.column("data")
    if options.include_headers:
        beside = page.column("beside").to_pylist() if "beside" in names else []
        stored = [decode_extras(each).headers for each in beside]
        # A message without headers has null, as in Spark's Kafka source.
        listed = [[{"key": header.name, "value": header.value} for header in each] or None for each in stored]
        columns["headers"] = pa.array(listed, HEADERS) if listed else pa.nulls(rows, HEADERS)
    if options.marks:
        columns[MARKED] = _marks(page.column("beside")) if "beside" in names else pa.repeat(False, rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def is_marked(headers: Sequence[Header]) -> bool:
    return any(each.name == NULL_HEADER for each in headers)


def _marks(beside: pa.Array) -> pa.Array:
    """Returns which messages stand for a row with null data, by the headers in the column `beside` of a bulk page."""
    # Few messages have the mark, so only the headers that contain its bytes are decoded.
    may_be = pc.fill_null(pc.match_substring(beside, NULL_HEADER.encode()), False)
    found = may_be.to_pylist() if pc.any(may_be).as_py() else []
    for at in [at for at, is_possible in enumerate(found) if is_possible]:
        found[at] = is_marked(decode_extras(beside[at].as_py()).headers)
    return pa.array(found, pa.bool_()) if found else pa.repeat(False, len(beside))


def check_batch(stream_id: int, page: pa.RecordBatch) -> None:
    """Raises BadAnswer for the first message of a bulk page whose stored checksum differs from the computed one."""
    nothing = [None] * page.num_rows
    keys = page.column("key").to_pylist() if "key" in page.schema.names else nothing
    beside = page.column("beside").to_pylist() if "beside" in page.schema.names else nothing
    plain = (page.column(name).to_pylist() for name in ("index", "time_us", "checksum", "data"))
    for index, time_us, checksum, data, key, headers in zip(*plain, keys, beside, strict=True):
        if checksum != checksum_full(seed_base(stream_id, time_us), index, data, key, headers):
            raise BadAnswer(f"message {index} is not what was written (its checksum differs); run `stream-node verify`")


def with_kafka_names(columns: dict[str, pa.Array], rows: int) -> dict[str, pa.Array]:
    """Returns the columns under the names of Spark's Kafka source. Null data is null in `value`, as in Kafka."""
    named = {KAFKA_NAMES.get(name, name): column for name, column in columns.items()}
    if MARKED in columns and pc.any(columns[MARKED]).as_py():
        named["value"] = pc.if_else(columns[MARKED], pa.scalar(None, pa.binary()), columns["data"])
    return named | {"timestampType": pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), rows)}
