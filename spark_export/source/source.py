"""Defines the format `stream_node`, a data source from which Spark makes readers and writers, and `read_range`.

Spark 4.3 passes the options of a table (`CREATE TABLE … USING stream_node OPTIONS (…)`) only when the table is created,
mixed with Spark's own table properties. A read gets the columns and the options of the query. So `remember` stores the
options in the metadata of the first column, which Spark keeps with the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import datasource
from pyspark.sql.types import StructField, StructType

from spark_export.errors import OptionError
from spark_export.shipping import Shipped
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS, own_names, read_options, write_options

FORMAT = "stream_node"
METADATA = "stream_node.options"
"""The key of the options in the metadata of the first column of a table."""
PROVIDER = "provider"
"""The Spark property that a read of a table has, and every other read lacks."""
OPTION = "option."
"""Spark passes each option in `OPTIONS (…)` also under this prefix. A name without it can be a table property."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StreamNodeSource(Shipped):
    """The Spark data source for the format `stream_node`: a table whose rows are the messages of streams.

    The columns are exactly those of Spark's Kafka source: `key`, `value` binary or null, `topic` string, `partition`
    int, `offset` long, `timestamp`, `timestampType` (always 1: the time is when the message was stored) and, with
    `includeHeaders`, `headers` array<struct<key: string, value: binary>>, null for a message without headers. With the
    option `columns=stream`, the columns have the names of this project: `key`, `data`, `stream`, `partition`, `index`,
    `timestamp` and `headers`.

    docs/spark.md explains each option with an example. A read has exactly one of `subscribe`, `subscribePattern` and
    `assign`, which name its streams. The others are optional:

    - where to begin and to end: `startingOffsets`, `endingOffsets`, `startingTimestamp`, `endingTimestamp`,
      `startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`, `startingOffsetsByTimestampStrategy`, `failOnDataLoss`;
    - micro-batches and tasks: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`, `minPartitions`,
      `maxRecordsPerPartition`;
    - what to read: `columns`, `includeHeaders`, `includeData`, `verifyChecksums`;
    - columns from messages: `decode` (`json`, `cbor`, `avro`, `protobuf`, `cardinal` or `block`), `timeZone`,
      `columnNameOfCorruptRecord`, `columnNameOfProblem`, `avroSchema`, `protobufDescriptor`, `protobufMessage`,
      `schemaRegistry`, `schemaRegistryAuth`, `schemaRegistryTimeoutMs`;
    - the connection of reads and writes: `endpoint`, `requestTimeoutMs`, `tlsCa`, `tlsCert`, `tlsKey`, `tlsServerName`,
      `token`; of reads alone: `path`, `fetchBytes`;
    - writes: `stream`, `topic`, `partitions`, `window`, `nulls`, `ifExists`, `writeId`, `writeVersion`, `delivery`.

    An option of Spark's Kafka source or sink has the same effect here, is ignored where it has none, or is refused
    (`spark_export.source.kafka_options`).

    A schema given by `.schema(…)` chooses the columns and their order. Data and headers that no column needs are not
    read. Spark 4.3 itself does not remove unused columns of a Python data source.

    The DataFrame to write has the column `data` or `value`, binary or string. The columns `key`, `headers`, `stream` or
    `topic`, and `partition` are optional.
    """

    # A method imports the module that it needs, since a task needs only one of them.

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises OptionError for an unknown option. Spark passes `options` by this name."""
        self._is_table = is_table(options)
        self.options = dict(options)
        self._own = own_names(own_options(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from spark_export.source.readers import full_schema

        if not self._is_table:
            return full_schema(read_options(self._own))
        # A table may have options for reading and options for INSERT INTO.
        options = {name: value for name, value in self._own.items() if name in READ_OPTIONS}
        return remember(full_schema(read_options(options)), self._own)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        from spark_export.source.readers import BatchReader

        schema, options = recall(schema, self._own)
        return BatchReader(read_options(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        from spark_export.sink.writer import StreamWriter

        schema, options, inserts = recall_for_write(schema, self._own)
        return StreamWriter(schema, replace(write_options(options), inserts=inserts), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        from spark_export.sink.writer import StreamSink

        schema, options = recall(schema, self._own, WRITE_OPTIONS)
        return StreamSink(schema, write_options(options, streaming=True), overwrite)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        from spark_export.source.readers import StreamReader

        schema, options = recall(schema, self._own)
        return StreamReader(read_options(options), schema)


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options without the properties that Spark adds for a table."""
    if not is_table(given):
        return dict(given)
    found = {}
    for name, value in given.items():
        if name.lower().startswith(OPTION):
            found[name[len(OPTION) :]] = value
        elif name.lower() == "path":
            # Spark removes the option `path`, and passes its value as the location of the table: file:/data.
            found["path"] = unquote(urlsplit(value).path) if value.startswith("file:") else value
    return found


def is_table(given: Mapping[str, str]) -> bool:
    return any(name.lower() == PROVIDER for name in given)


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Returns the schema with the options added to the metadata of its first column."""
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall(
    schema: StructType, options: Mapping[str, str], names: Collection[str] = READ_OPTIONS
) -> tuple[StructType, dict[str, str]]:
    """Returns the schema without the metadata of `remember`, and the options: those given, and the table's `names`."""
    kept: dict[str, str] = {}
    fields = []
    for field in schema.fields:
        metadata = dict(field.metadata or {})
        if METADATA in metadata:
            kept |= own_names(json.loads(metadata.pop(METADATA)))
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields), {name: value for name, value in kept.items() if name in names} | dict(options)


def recall_for_write(schema: StructType, options: Mapping[str, str]) -> tuple[StructType, dict[str, str], bool]:
    """Returns the schema without metadata, the options for a write, and whether the rows come from an INSERT INTO.
    Raises OptionError for a table without a node.

    The rows of an INSERT INTO go to the stream of the table's option `stream`, or to the one stream that it reads.
    """
    plain, found = recall(schema, options, WRITE_OPTIONS)
    # Another write can have columns of a table, but not the index that the node gives.
    is_of_table = any(METADATA in (field.metadata or {}) for field in schema.fields)
    if not is_of_table or {"index", "offset"}.isdisjoint(schema.fieldNames()):
        return plain, found, False
    table = recall(schema, {}, ("path", "subscribe"))[1]
    if "path" in table and "endpoint" not in found:
        raise OptionError(
            "this table reads a data directory, and rows are written to a node: create the table with endpoint too"
        )
    subscribed = table.get("subscribe", "")
    if subscribed and "," not in subscribed:
        found.setdefault("stream", subscribed.strip())
    return plain, found, True


def read_range(
    spark: Any,
    stream: str,
    *,
    partition: int | Sequence[int] | None = None,
    index: tuple[int, int] | None = None,
    time: tuple[datetime, datetime] | None = None,
    **options: str,
) -> Any:
    """Returns a DataFrame with the messages of a stream in the given range. Raises OptionError.

    Spark tasks read only this range. A Spark filter (`where`) would read the whole stream. With both `index` and
    `time`, tasks read the index range and then filter by time.

    partition: one partition or several partitions; None for all.
    index: the first and the end index, the same for each partition; the end is not included. It needs `partition`.
    time: the first and the last time of storing the messages; the last is not included. A time without a zone is UTC.
    options: more options of the read, such as `endpoint`.
    """
    parts = [partition] if isinstance(partition, int) else list(partition or ())
    chosen = {"subscribe": stream} if partition is None else {"assign": json.dumps({stream: parts})}
    if index is not None:
        if not parts:
            raise OptionError("read_range: index=(first, end) needs partition=…: each partition counts for itself")
        first, end = ({stream: dict.fromkeys(map(str, parts), number)} for number in index)
        chosen |= {"startingOffsets": json.dumps(first), "endingOffsets": json.dumps(end)}
    elif time is not None:
        # The options have whole milliseconds, so this range may be up to 1 ms too large. The filter below is exact.
        start_ms, end_ms = ((_aware(each) - EPOCH) // timedelta(milliseconds=1) for each in time)
        chosen |= {"startingTimestamp": str(start_ms), "endingTimestamp": str(end_ms + 1)}
        chosen |= {"startingOffsetsByTimestampStrategy": "latest"}
    frame = spark.read.format(FORMAT).options(**{**options, **chosen}).load()
    if time is None:
        return frame
    from pyspark.sql import functions

    after, before = (functions.lit(_aware(each)) for each in time)
    return frame.where((frame["timestamp"] >= after) & (frame["timestamp"] < before))


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
