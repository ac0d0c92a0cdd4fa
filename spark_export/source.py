"""The data source `format("stream_node")`, from which Spark makes readers and writers."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from spark_export.options import check_names, read_options, write_options
from spark_export.projection import full_schema
from spark_export.readers import BatchReader, StreamReader
from spark_export.writer import StreamWriter

FORMAT = "stream_node"


class StreamNodeSource(DataSource):
    """Streams of a stream node as a table of messages.

    Columns: `key` binary or null, `data` binary, `stream` string, `partition` int, `index` long, `timestamp`; with
    `includeHeaders` also `headers` array<struct<key: string, value: binary>>, null for a message without headers.

    Options of a read. Exactly one of these says what to read:

    - `subscribe`: stream names, separated by commas. `subscribePattern`: a regular expression for whole names;
      streams that are created later are read, too. `assign`: `{"orders":[0,1]}`.

    The range to read, all optional:

    - `startingOffsets`: `earliest`, `latest`, or `{"orders":{"0":23,"1":-1}}` (-2 earliest, -1 latest). Without
      this option a batch read starts at the earliest message, and a streaming read at the end. Partitions that are
      added later are read from their earliest message. A checkpoint overrides this option.
    - `endingOffsets`, batch only: `latest`, or indexes; exclusive.
    - `startingTimestamp`, `endingTimestamp`: milliseconds since 1970; the read starts or ends at the first message
      of that time or later. `startingOffsetsByTimestampStrategy`: `error` or `latest`, for a partition without such
      a message.
    - `failOnDataLoss` (true): if messages of a range were removed, or a stream was deleted and made anew during a
      query, the query fails (true), or logs the loss and goes on, with a new stream from its beginning (false).

    The way of reading:

    - `endpoint` (127.0.0.1:4000): `host:port`; each executor looks `env:NAME` or `file:PATH` up for itself.
    - `path`: the node's data directory, read as a file if node and executors share the machine.
    - `maxOffsetsPerTrigger`: the number of messages of a micro-batch, shared among partitions in proportion to
      their new messages.
    - `minPartitions`, `maxRecordsPerPartition` (2,000,000): how ranges are split into tasks.
    - `includeHeaders` (false), `includeData` (true).
    - `decode`: `json` or `cbor`: the members of an object become columns, as named by `.schema("index LONG, a
      INT")`; `cardinal`, for Cardinal Streams (`spark_export.decoding.CARDINAL`); `block`, for blocks and items of
      the block node (`spark_export.block_decoding.BLOCK`). Values that cannot be decoded are null.
    - `verifyChecksums` (false): whether the checksum of every message is computed again, which takes about half a
      second of one core for a million messages.
    - `fetchBytes` (4 MiB): the size of one answer; `fetchRetries` (3), `requestTimeoutMs` (120,000).

    A schema given to the reader chooses columns, in any order; other columns are not read. Spark 4.3 itself does not
    prune columns of a Python source.

    Options of a write: `endpoint`; `stream`, the stream of rows without a column `stream`, which is created with
    `partitions` (1) if it does not exist; `window` (1,000), the number of pushes under way; `fetchRetries`,
    `requestTimeoutMs`. Columns: `data` binary or string, and optionally `key`, `headers`, `stream`, `partition`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Spark passes `options` by name. Raises OptionError."""
        check_names(options)
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return full_schema(read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return StreamWriter(schema, write_options(self.options), overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.options), schema)
