"""The parts of PySpark's data source API that not every Spark from 4.0 to 4.3 has, each with a stand-in.

Spark has limits for micro-batches and the trigger AvailableNow for Python sources since 4.2, and Arrow batches for
streaming sinks since 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["HAS_LIMITS", "DataSourceStreamArrowWriter", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "ReadMinRows"]
__all__ += ["SupportsTriggerAvailableNow", "arrow_schema_of"]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False
    if not TYPE_CHECKING:
        ReadLimit, SupportsTriggerAvailableNow = type("ReadLimit", (), {}), type("SupportsTriggerAvailableNow", (), {})
        ReadAllAvailable, ReadMaxRows, ReadMinRows = (type("Limit", (ReadLimit,), {}) for _ in range(3))
if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark demands for these columns, with times in UTC."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Before Spark 4.2, the function has no argument for the zone, and uses UTC.
        return to_arrow_schema(schema)
