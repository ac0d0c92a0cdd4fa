"""Creates Spark types without a call to the session, which a declarative pipeline of Spark forbids."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

BINARY, BOOLEAN, INT, LONG, STRING = BinaryType(), BooleanType(), IntegerType(), LongType(), StringType()


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def array(element: DataType) -> ArrayType:
    return ArrayType(element)


def strings_to(value: DataType) -> MapType:
    return MapType(STRING, value)
