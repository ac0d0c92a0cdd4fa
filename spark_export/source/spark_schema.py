"""The columns of messages for Spark. `spark_export.source.schema` has the same columns for Arrow."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_export.source.options import ReadOptions
from spark_export.source.schema import KAFKA_NAMES

HEADER = StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), False)])
KAFKA_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def spark_schema(options: ReadOptions, extra: Sequence[StructField] = ()) -> StructType:
    """Returns the Spark schema of a read with these options."""
    return StructType([*(_kafka_fields(options) if options.kafka_columns else _own_fields(options)), *extra])


def _kafka_fields(options: ReadOptions) -> list[StructField]:
    types = {"partition": IntegerType(), "index": LongType(), "stream": StringType()}
    names = {ours: kafka for ours, kafka in KAFKA_NAMES.items() if ours != "data" or options.include_data}
    fields = [StructField(kafka, types.get(ours, BinaryType())) for ours, kafka in names.items()]
    fields += [StructField("timestamp", TimestampType()), StructField("timestampType", IntegerType())]
    return fields + ([StructField("headers", ArrayType(KAFKA_HEADER))] if options.include_headers else [])


def _own_fields(options: ReadOptions) -> list[StructField]:
    fields = [StructField("key", BinaryType(), True)]
    if options.include_data:
        fields.append(StructField("data", BinaryType(), False))
    fields += [
        StructField("stream", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("index", LongType(), False),
        StructField("timestamp", TimestampType(), False),
    ]
    if options.include_headers:
        fields.append(StructField("headers", ArrayType(HEADER, False), True))
    return fields
