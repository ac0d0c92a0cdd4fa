"""Turns the rows of a DataFrame into messages to push. This module connects to no node.

The columns can have the names of this format (`data`, `stream`) or the names of Spark's Kafka sink (`value`, `topic`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, ShortType, StringType, StructType

from spark_export.errors import OptionError
from spark_export.source.node_client import push_body
from spark_export.source.options import WriteOptions
from spark_export.source.schema import NULL_HEADER

TYPES: dict[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "stream": (StringType,),
    "partition": (IntegerType, LongType, ShortType),
    "headers": (ArrayType,),
}
"""The columns that are allowed in a written DataFrame, and the allowed Spark types of each column."""
KAFKAS = {"value": "data", "topic": "stream"}
"""Maps a column name of Spark's Kafka sink to the name of the same column in this format."""
GIVEN_BY_NODE = ("index", "offset", "timestamp", "timestampType")
"""The columns that a read returns but a write refuses, because the node assigns them."""
DIGEST_BYTES = 16


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises OptionError if rows with this schema cannot be written."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name in GIVEN_BY_NODE and options.inserts:
            # An INSERT has all columns of its table. `read_row` checks that these columns are null.
            continue
        if field.name in GIVEN_BY_NODE:
            raise OptionError(
                f"the column {field.name!r} cannot be written: the node gives each message its index and its time; "
                "drop the column, or write it as a header"
            )
        allowed = TYPES.get(KAFKAS.get(field.name, field.name))
        if allowed is None:
            known = ", ".join((*TYPES, *KAFKAS))
            raise OptionError(f"the column {field.name!r} cannot be written; there are {known}")
        if not isinstance(field.dataType, allowed):
            wanted = " or ".join(each.typeName() for each in allowed)
            raise OptionError(f"the column {field.name!r} is {field.dataType.simpleString()}; it is {wanted}")
    for kafkas, ours in KAFKAS.items():
        if kafkas in names and ours in names:
            raise OptionError(f"the columns {kafkas!r} and {ours!r} mean the same; leave one of them out")
    if "data" not in names and "value" not in names:
        raise OptionError("there is no column 'data' (or 'value'): name the column to push so, binary or string")
    if options.stream is None and not has_stream_column(schema):
        raise OptionError("say where to push: by the option stream, or by a column 'stream' (or 'topic')")


def has_stream_column(schema: StructType) -> bool:
    names = schema.fieldNames()
    return "stream" in names or "topic" in names


@dataclass(frozen=True)
class RowToPush:
    """A row as a message to push. `body` is the result of `push_body` with request id 0."""

    stream: str
    partition: int | None
    key: bytes | None
    body: bytes


def read_row(row: dict[str, Any], options: WriteOptions) -> RowToPush | None:
    """Converts a row to a message; None for null data with `nulls=skip`. Raises OptionError."""
    if options.inserts and any(row.get(name) is not None for name in GIVEN_BY_NODE):
        raise OptionError(
            "the node gives each message its index and its time: name other columns, as in INSERT INTO t (key, value), "
            "and create the table with columns 'kafka', whose columns may all be left out"
        )
    stream = row.get("stream") or row.get("topic") or options.stream
    if stream is None:
        raise OptionError("a row has null in the column 'stream', and there is no option stream")
    headers = [(_text(each["key"]), to_bytes(each["value"]) or b"") for each in row.get("headers") or ()]
    message = to_bytes(row["data"] if "data" in row else row["value"])
    if message is None:
        if options.nulls == "error":
            raise OptionError(
                "a row has null in the column 'data'; leave such rows out, or set nulls to empty, skip or mark"
            )
        if options.nulls == "skip":
            return None
        message = b""
        if options.nulls == "mark":
            headers.append((NULL_HEADER, b""))
    key = to_bytes(row.get("key"))
    return RowToPush(stream, row.get("partition"), key, push_body(0, message, key, headers))


def digest_of(body: bytes) -> bytes:
    """Returns the BLAKE2b digest of the body of a push, `DIGEST_BYTES` long."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def to_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
