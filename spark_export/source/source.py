"""Defines the format `stream_node`, a data source from which Spark makes readers and writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_export.shipping import Shipped
from spark_export.source.kafka_options import without_kafkas_names
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS, check_names, read_options, write_options
from spark_export.source.table_options import is_insert, is_table, own_options, recall, recall_for_write, remember

FORMAT = "stream_node"


class StreamNodeSource(Shipped):
    """The Spark data source for the format `stream_node`: a table whose rows are the messages of streams.

    The columns are exactly those of Spark's Kafka source: `key`, `value` binary or null, `topic` string, `partition`
    int, `offset` long, `timestamp`, `timestampType` (always 1: the time is when the message was stored) and, with
    `includeHeaders`, `headers` array<struct<key: string, value: binary>>, null for a message without headers.

    The option `columns` is `kafka` (the default) or `stream`. With `stream`, the columns have the names of this
    project: `key`, `data`, `stream`, `partition`, `index`, `timestamp` and `headers`.

    An option of Spark's Kafka source or sink has the same effect here, is ignored where it has none, or is refused
    (`spark_export.source.kafka_options`).

    A read has exactly one of these options, which names the streams:

    - `subscribe`: stream names, separated by commas.
    - `subscribePattern`: a regular expression that must match whole stream names. A streaming query also reads matching
      streams that are created later.
    - `assign`: partitions of streams, such as `{"orders":[0,1]}`.

    These optional options of a read choose the range of messages:

    - `startingOffsets`: `earliest`, `latest`, or indexes such as `{"orders":{"0":23,"1":-1}}`, where -2 means
      earliest and -1 means latest. Default: `earliest` for a batch read, `latest` for a streaming read. Partitions
      that are added later are read from index 0. A checkpoint overrides this option.
    - `endingOffsets`, only for a batch read: `latest` (the default), or indexes. The message at such an index is not
      read.
    - `startingTimestamp`, `endingTimestamp`: milliseconds since 1970. The read starts at, or ends before, the first
      message that was stored at this time or later. `startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`: a time
      for each partition, such as `{"orders":{"0":1700000000000}}`. A time has precedence over an offset.
    - `startingOffsetsByTimestampStrategy`, for a partition without a message at the starting time or later: `error`
      (the default) fails the query, `latest` starts at the end of the partition.
    - `failOnDataLoss` (true): whether the query fails if messages were removed, if a stream or partition was deleted,
      or if a stream was deleted and created again. With false the query logs the loss and continues; it reads the new
      stream from the beginning.

    These optional options of a read control how messages are read:

    - `endpoint` (127.0.0.1:4000): the node's address `host:port`, or several addresses of one cluster, separated by
      commas, or `env:NAME` for an environment variable or `file:PATH` for a file with these. Each executor reads its
      own variable or file.
    - `tlsCa`: connect with TLS 1.3; a PEM file with the authorities of the node's certificate, or `system`. `tlsCert`,
      `tlsKey`: PEM files with the certificate and the private key that prove who reads. `tlsServerName`: the name that
      the node's certificate must have, if the host of the endpoint is another. The driver and each executor read these
      files under the same paths; Spark sends the paths, and never the keys.
    - `token`: `env:NAME` or `file:PATH` of a token that proves who reads. Each process reads its own variable or file,
      so Spark's plans do not show the token. It is sent over TLS, or to the same machine.
    - `path`: the node's data directory, if the node and all executors run on one machine. Spark then reads the
      database file, without requests to the node.
    - `maxOffsetsPerTrigger`: about how many messages a micro-batch reads at most. Each partition gets a share in
      proportion to its new messages. `minOffsetsPerTrigger`: how many new messages a micro-batch waits for, and
      `maxTriggerDelay` (15m): how long it waits at most. Batch reads ignore these three options.
    - `minPartitions`: the smallest number of Spark tasks, if there are that many messages.
      `maxRecordsPerPartition` (2,000,000): the largest number of messages that one task reads.
    - `includeHeaders` (false), `includeData` (true): whether the table has the column `headers` or `data`.
    - `decode`: the kind of message to decode into columns. Values that cannot be decoded are null, in the row of their
      message alone (docs/decoding.md).
      `json`, `cbor`: members of an object, as named by `.schema("index LONG, a INT")`.
      `avro`, `protobuf`: fields of a record or message, named in the same way.
      `cardinal`: messages of Cardinal Streams (columns: `spark_export.decode.cardinal.CARDINAL`).
      `block`: blocks and block items of the block node (columns: `spark_export.decode.block.BLOCK`).
    - `columnNameOfCorruptRecord` (_corrupt_record), `columnNameOfProblem` (_problem): the names of two columns that
      `.schema(…)` can contain: the text of a JSON or CBOR message that could not be decoded whole, and why.
      `timeZone` (UTC): the time zone of times in messages whose text names none.
    - `avroSchema`: the JSON of an Avro schema, or `file:PATH`. `protobufDescriptor`: the file of a FileDescriptorSet.
      `protobufMessage`: the full name of a message. The driver reads the files.
    - `schemaRegistry`: the address of a schema registry, such as `http://host:8081`, for Avro and Protobuf messages in
      the registry's wire format. `schemaRegistryAuth`: `env:NAME` or `file:PATH` of its credentials, `USER:PASSWORD` or
      `bearer TOKEN`, which each executor reads. `schemaRegistryTimeoutMs` (10,000): how long to wait for an answer.
    - `verifyChecksums` (false): whether the checksum of every message is computed again. This takes about half a second
      of one core for a million messages.
    - `fetchBytes` (4 MiB): the approximate size of one page. `requestTimeoutMs` (120,000): for how many milliseconds a
      call is repeated, and an answer awaited, while the node restarts, fails over or cannot be reached.

    A schema given by `.schema(…)` chooses the columns and their order. Data and headers that no column needs are not
    read. Spark 4.3 itself does not remove unused columns of a Python data source.

    A write has these options:

    - `endpoint`, `requestTimeoutMs`, `tlsCa`, `tlsCert`, `tlsKey`, `tlsServerName`, `token`: as for a read.
    - `stream`: the stream for rows without a value in the column `stream`. If the stream is missing, the
      write creates the stream with `partitions` (1) partitions. `topic`: the stream for all rows.
    - `window` (1,000): the largest number of unconfirmed pushes of a task.
    - `nulls`, for a row with null data: `error` (the default) fails the task, `empty` writes an empty message, `skip`
      leaves the row out, `mark` writes an empty message with the header `node/null/1`. A header whose value is null is
      written as empty or left out with `empty` and `skip`, and is otherwise an error.
    - `ifExists`, if `stream` has messages: `append` (the default), `ignore` writes nothing, `error` fails the write.
    - `writeId`, `writeVersion` (0): name and number of a write. A write of the same name with this number or a lower
      one is stored once, however often it is repeated.
    - `delivery`, only for a streaming query: `exactlyOnce` (the default) or `atLeastOnce`.

    The DataFrame to write has the column `data` or `value`, binary or string. The columns `key`, `headers`, `stream` or
    `topic`, and `partition` are optional.
    """

    # A method imports the module that it needs, since a task needs only one of them.

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises OptionError for an unknown option. Spark passes `options` by this name."""
        self._is_table = is_table(options)
        self.options = dict(options)
        self._own = without_kafkas_names(own_options(options))
        check_names(self._own)

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

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_export.source.readers import BatchReader

        schema, options = recall(schema, self._own)
        return BatchReader(read_options(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_export.sink.writer import StreamWriter

        inserts = is_insert(schema)
        schema, options = recall_for_write(schema, self._own)
        return StreamWriter(schema, replace(write_options(options), inserts=inserts), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_export.sink.writer import StreamSink

        schema, options = recall(schema, self._own, WRITE_OPTIONS)
        return StreamSink(schema, write_options(options, streaming=True), overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_export.source.readers import StreamReader

        schema, options = recall(schema, self._own)
        return StreamReader(read_options(options), schema)
