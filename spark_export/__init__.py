"""Apache Spark reads and writes the streams of a node: by the source and sink `format("stream_node")`, and a session
that knows them.

    from spark_export import open_session

    spark = open_session()                                        # embedded: local[*,4], silent, loopback only
    batch = spark.read.format("stream_node").option("subscribe", "orders").load()
    rows = spark.readStream.format("stream_node").option("subscribe", "orders").load()
    frame.write.format("stream_node").mode("append").option("stream", "copy").save()

- `open_session(master="local[*,4]", *, remote=None, name=…, config=None, aot_cache=None)` gives a SparkSession with the
  source registered; `stop()` it at the end.
- `register(spark)` adds the source to a session made elsewhere; its workers need pyarrow, but not this project. Where
this project is installed on driver and workers, Spark finds the source by itself (`pyspark_stream_node`).
- Columns: `key` binary or null, `data` binary, `stream` string, `partition` int, `index` long, `timestamp`, and by
  option `headers`. All options are in `spark_export.source.StreamNodeSource`.
- Offsets of a streaming query are `{"orders": {"0": 17, "1": 4}}`: the next index to read of each partition.

For a program that reads without Spark's source (an exporter whose tasks write files):
`spark_export.options.read_options`; `spark_export.catalog.find_catalog` and `selected` for the existing streams;
`spark_export.plan.split` for ranges; and `spark_export.range_reader.RangeReader(range, options).batches()` for record
batches of `spark_export.schema.arrow_schema(options)`, each range proven complete at its end.

The node does not import this package. The package imports no module until a name is asked for, so that importing it is
cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_export.registration import register
    from spark_export.session import open_session

__all__ = ["open_session", "register"]


def __getattr__(name: str) -> Any:
    if name == "register":
        from spark_export.registration import register

        return register
    if name == "open_session":
        from spark_export.session import open_session

        return open_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
