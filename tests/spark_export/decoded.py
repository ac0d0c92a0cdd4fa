"""Decoders for tests, and the rows that they make of messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_export.decode.decoding import MessageDecoder, decoder


def make_decoder(kind: str, columns: StructType, **options: str) -> MessageDecoder:
    return decoder(kind, list(to_arrow_schema(columns, timezone="UTC")), options)


def arrays_of(made: MessageDecoder, messages: list[bytes]) -> list[pa.Array]:
    data = pa.array(messages, pa.binary())
    return made.arrays(pa.nulls(len(data), pa.binary()), data, None)


def rows_of(made: MessageDecoder, messages: list[bytes]) -> list[dict[str, Any]]:
    """The rows with the values as Python has them."""
    names = [field.name for field in made.fields]
    columns = [array.to_pylist() for array in arrays_of(made, messages)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
