"""Defines the format `stream_node`, a data source from which Spark makes readers and writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import datasource
from pyspark.sql.types import StructType

from spark_export.shipping import Shipped
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS, own_names, read_options, write_options
from spark_export.source.table_options import is_insert, is_table, own_options, recall, recall_for_write, remember

FORMAT = "stream_node"


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
        from spark_export.source.projection import full_schema

        if not self._is_table:
            return full_schema(read_options(self._own))
        # A table may have options for reading and options for INSERT INTO.
        only_for_writes = {name.lower() for name in WRITE_OPTIONS} - {name.lower() for name in READ_OPTIONS}
        options = {name: value for name, value in self._own.items() if name.lower() not in only_for_writes}
        return remember(full_schema(read_options(options)), self._own)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        from spark_export.source.readers import BatchReader

        schema, options = recall(schema, self._own)
        return BatchReader(read_options(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        from spark_export.sink.writer import StreamWriter

        inserts = is_insert(schema)
        schema, options = recall_for_write(schema, self._own)
        return StreamWriter(schema, replace(write_options(options), inserts=inserts), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        from spark_export.sink.writer import StreamSink

        schema, options = recall(schema, self._own, WRITE_OPTIONS)
        return StreamSink(schema, write_options(options, streaming=True), overwrite)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        from spark_export.source.readers import StreamReader

        schema, options = recall(schema, self._own)
        return StreamReader(read_options(options), schema)
