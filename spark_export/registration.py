"""Registers the format `stream_node` with a Spark session. The workers need not have this project installed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_export.shipping import Shipped


def register(spark: Any) -> None:
    """Registers the format `stream_node` with a session, so that `spark.read.format("stream_node")` works.

    Also gives the session a zip with the packages of this project (`spark_export.shipping`), so that the workers need
    only pyarrow and msgspec. A repeated call has no further effect. If this project is installed on the driver and on
    the workers, Spark finds the format without this call.
    """
    from spark_export.source.source import StreamNodeSource

    _use_this_python(spark)
    register_format(spark, StreamNodeSource)


def register_format(spark: Any, source: type[Shipped]) -> None:
    """Registers another format of this project with a session. A repeated call has no further effect."""
    from spark_export.shipping import ship, shipped

    ship(spark)
    # Spark refuses a name that the active session knows, even if this session does not. A new table makes this session
    # the active one.
    spark.createDataFrame([], "name string")
    try:
        spark.dataSource.register(shipped(source))
    except Exception as error:
        # If this project is installed, Spark finds the format itself. Spark 4.0 then refuses to register its name.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _use_this_python(spark: Any) -> None:
    """Makes Spark on this machine run its workers with the Python of this process, if the user has chosen none.

    Otherwise Spark takes the first python3 of PATH, which can lack pyarrow or have another version.
    """
    from pyspark.sql import SparkSession

    # A session of Spark Connect has no context here; its server chooses the Python.
    context = spark.sparkContext if isinstance(spark, SparkSession) and not hasattr(spark, "_client") else None
    if context is None or os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python"):
        return
    if context.master.startswith("local"):
        context.pythonExec = sys.executable
