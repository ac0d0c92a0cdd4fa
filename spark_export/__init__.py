"""Lets Apache Spark read and write the streams of a node. Spark uses the format `stream_node` for both.

    from spark_export import open_session

    spark = open_session()                                        # embedded: local[*,4], silent, loopback only
    batch = spark.read.format("stream_node").option("subscribe", "orders").load()
    rows = spark.readStream.format("stream_node").option("subscribe", "orders").load()
    frame.write.format("stream_node").mode("append").option("stream", "copy").save()

- `open_session(master="local[*,4]", *, remote=None, name=…, config=None, aot_cache=None)` returns a SparkSession that
  knows the format `stream_node`. The caller stops the session at the end with `stop()`.
- `register(spark)` adds the format to an existing session. The workers need pyarrow, but not this project. If this
  project is installed on the driver and on the workers, Spark finds the format itself (`pyspark_stream_node`).
- `read_range(spark, stream, partition=…, index=(first, end), time=(start, end), endpoint=…)` returns a DataFrame with
  the messages of that range, and reads nothing else.
- `decoder(kind, schema, options)` returns a decoder: a function that adds columns with the contents of messages to
  record batches (docs/decoding.md). It needs no Spark.
- `table_files(address)` returns the files of an exported table, of any format, in a folder or on a store.

docs/spark.md explains the columns and the options. A program that does not use the format calls
`spark_export.source.options.read_options`, `spark_export.source.catalog.selected`, `spark_export.source.plan.split` and
`spark_export.source.range_reader.RangeReader(range, options).batches()`.

The package imports its modules only when a public name is used, so that the import of the package is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_export.decode.decoding import decoder
    from spark_export.exporter.job import table_files
    from spark_export.session import open_session
    from spark_export.shipping import register
    from spark_export.source.source import read_range

__all__ = ["decoder", "open_session", "read_range", "register", "table_files"]
_HOMES = {
    "decoder": "spark_export.decode.decoding",
    "open_session": "spark_export.session",
    "read_range": "spark_export.source.source",
    "register": "spark_export.shipping",
    "table_files": "spark_export.exporter.job",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
