"""Spark's types, made without asking a session: a declarative pipeline may not, while its tables are defined."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

BINARY, INT, LONG, STRING = BinaryType(), IntegerType(), LongType(), StringType()


def struct(**fields: DataType) -> StructType:
    """Members in that order, each of which may be null."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def array(element: DataType) -> ArrayType:
    return ArrayType(element)


def strings_to(value: DataType) -> MapType:
    """A map whose keys are text."""
    return MapType(STRING, value)
