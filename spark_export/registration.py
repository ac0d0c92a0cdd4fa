"""Makes a Spark session know `stream_node`, whatever its workers have installed."""

from __future__ import annotations

from typing import Any

SENT_BY_VALUE = ("spark_export", "storage.bulk.arrow_pages", "storage.checksum")
"""Packages whose code goes to the workers with the task. They need pyarrow there, and nothing of ours."""


def register(spark: Any) -> None:
    """Register the source with this session; `spark.read.format("stream_node")` works afterwards. Safe to repeat.

    Not needed where the project is installed on driver and workers: there Spark finds it by itself.
    """
    from spark_export.source import StreamNodeSource

    send_by_value()
    spark.dataSource.register(StreamNodeSource)


def send_by_value() -> None:
    """From now on this process sends our code with what it sends to workers. Safe to repeat."""
    from importlib import import_module

    from pyspark import cloudpickle

    for package in SENT_BY_VALUE:
        cloudpickle.register_pickle_by_value(import_module(package))
