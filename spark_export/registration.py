"""Registers `stream_node` with a Spark session whose workers need not have this project installed."""

from __future__ import annotations

from typing import Any

SENT_BY_VALUE = ("spark_export", "storage.bulk.arrow_pages", "storage.checksum")
"""Packages whose code goes to the workers with the task. They need pyarrow there, and nothing of ours."""


def register(spark: Any) -> None:
    """Registers the source with this session; `spark.read.format("stream_node")` works afterwards. Safe to repeat.

    Not needed if the project is installed on driver and workers: then Spark finds the source by itself.
    """
    from spark_export.source import StreamNodeSource

    send_by_value()
    spark.dataSource.register(StreamNodeSource)


def send_by_value() -> None:
    """Makes this process send our modules to workers, together with the objects that use them. Safe to repeat."""
    from importlib import import_module

    from pyspark import cloudpickle

    for package in SENT_BY_VALUE:
        cloudpickle.register_pickle_by_value(import_module(package))
