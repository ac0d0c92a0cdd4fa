"""Registers the format `stream_node` with a Spark session. The workers need not have this project installed."""

from __future__ import annotations

import os
import sys
from typing import Any

SENT_BY_VALUE = ("spark_export", "stream_storage.sqlite.bulk.arrow_pages", "stream_storage.checksum")
"""Modules whose functions programs can use in functions for Spark, which sends their code to the workers."""


def register(spark: Any) -> None:
    """Registers the format `stream_node` with a session, so that `spark.read.format("stream_node")` works.

    A repeated call has no further effect. If this project is installed on the driver and on the workers, Spark finds
    the format without this call.
    """
    from spark_export.source.sent_code import sent_class
    from spark_export.source.source import StreamNodeSource

    send_by_value()
    _use_this_python(spark)
    spark.dataSource.register(sent_class(StreamNodeSource))


def _use_this_python(spark: Any) -> None:
    """Makes Spark on this machine run its workers with the Python of this process, unless the user has chosen one.

    Otherwise Spark takes the first python3 of PATH, which can lack pyarrow or have another version.
    """
    from pyspark.sql import SparkSession

    # A session of Spark Connect has no context here; its server chooses the Python.
    context = spark.sparkContext if isinstance(spark, SparkSession) and not hasattr(spark, "_client") else None
    if context is None or os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python"):
        return
    if context.master.startswith("local"):
        context.pythonExec = sys.executable


def send_by_value() -> None:
    """Makes this process send the code of this project to Spark's workers, where this project can be missing.

    From now on, the pickled data source contains the modules that it needs, and every other pickled object contains the
    code of `SENT_BY_VALUE` that it uses. A repeated call has no further effect.
    """
    from importlib import import_module

    from pyspark import cloudpickle

    from spark_export.source.sent_code import send_modules

    send_modules()
    for package in SENT_BY_VALUE:
        cloudpickle.register_pickle_by_value(import_module(package))
