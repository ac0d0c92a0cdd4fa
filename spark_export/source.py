"""`format("stream_node")`: the DataSource that Spark makes readers and writers from."""

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
    `includeHeaders` also `headers` array<struct<key: string, value: binary>>, null where there are none.

    Options of a read. Exactly one of these says what to read:

    - `subscribe`: stream names, with commas between. `subscribePattern`: a regular expression for whole names; streams
      that come later are found too. `assign`: `{"orders":[0,1]}`.

    Where to read, all optional:

    - `startingOffsets`: `earliest`, `latest`, or `{"orders":{"0":23,"1":-1}}` (-2 earliest, -1 latest). Without it a
      batch read starts at the earliest and a streaming read at the latest. Partitions that appear later are read from
      their earliest. A checkpoint wins over it.
    - `endingOffsets`, batch only: `latest`, or indexes; exclusive.
    - `startingTimestamp`, `endingTimestamp`: milliseconds since 1970; the first message of that time or later.
      `startingOffsetsByTimestampStrategy`: `error` or `latest`, where a partition has none.
    - `failOnDataLoss` (true): whether to fail where messages of a range are gone, or a stream was deleted and made
      again under a query; or to log that and go on, with a new stream from its beginning.

    How:

    - `endpoint` (127.0.0.1:4000): `host:port`; `env:NAME` or `file:PATH` is looked up by each executor for itself.
    - `path`: the node's data directory, read as a file where node and executors share the machine.
    - `maxOffsetsPerTrigger`: messages of a micro-batch, shared over partitions by what each has.
    - `minPartitions`, `maxRecordsPerPartition` (2,000,000): how ranges are split into tasks.
    - `includeHeaders` (false), `includeData` (true).
    - `decode`: `json` or `cbor`, for the members of an object as columns, those that `.schema("index LONG, a INT")`
      names; `cardinal`, for Cardinal Streams (`spark_export.decoding.CARDINAL`); `block`, for blocks and items of the
      block node (`spark_export.block_decoding.BLOCK`). What cannot be decoded is null.
    - `verifyChecksums` (false): compute the checksum of every message again; about half a second of a core a million.
    - `fetchBytes` (4 MiB) of one answer, `fetchRetries` (3), `requestTimeoutMs` (120,000).

    A schema given to the reader chooses columns, in any order; those that are not named are not read. Spark 4.3 itself
    prunes no column of a Python source.

    Options of a write: `endpoint`; `stream`, where rows without a column `stream` go, made where it does not exist,
    with `partitions` (1); `window` (1,000) of pushes on their way; `fetchRetries`, `requestTimeoutMs`. Columns: `data`
    binary or string, and optionally `key`, `headers`, `stream`, `partition`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Spark calls this with the argument's name. Raises OptionError."""
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
