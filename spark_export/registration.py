"""Registers the format `stream_node` with a Spark session. The workers need not have this project installed."""

from __future__ import annotations

from typing import Any

SENT_BY_VALUE = ("spark_export", "storage.bulk.arrow_pages", "storage.checksum")
"""Packages and modules whose code is sent to the workers with each task.

The workers need pyarrow, but not this project.
"""


def register(spark: Any) -> None:
    """Registers the format `stream_node` with a session, so that `spark.read.format("stream_node")` works.

    A repeated call has no further effect. If this project is installed on the driver and on the workers, Spark finds
    the format without this call.
    """
    from spark_export.source import StreamNodeSource

    send_by_value()
    spark.dataSource.register(StreamNodeSource)


def send_by_value() -> None:
    """Makes this process send the code of `SENT_BY_VALUE` to workers with every object that uses the code.

    A repeated call has no further effect.
    """
    from importlib import import_module

    from pyspark import cloudpickle

    for package in SENT_BY_VALUE:
        cloudpickle.register_pickle_by_value(import_module(package))
