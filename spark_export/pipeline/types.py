"""Creates Spark types without a call to the Spark session.

A declarative pipeline of Spark forbids such calls in the definitions of tables.
"""

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
    """Returns a struct type with these fields, in this order. Every field can be null."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def array(element: DataType) -> ArrayType:
    return ArrayType(element)


def strings_to(value: DataType) -> MapType:
    """Returns a map type with text keys and values of the type `value`."""
    return MapType(STRING, value)
