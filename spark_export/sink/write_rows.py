"""Turns the rows of a DataFrame into messages to push. This module connects to no node.

The columns can have the names of this format (`data`, `stream`) or the names of Spark's Kafka sink (`value`, `topic`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, ShortType, StringType, StructType

import bare
from spark_export.errors import OptionError
from spark_export.source.options import WriteOptions
from spark_export.source.schema import NULL_HEADER
from stream_service.extensions import Header, RichPush

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
    return not {"stream", "topic"}.isdisjoint(schema.fieldNames())


@dataclass(frozen=True)
class RowToPush:
    """A row as a message to push. If `partition` is None, `Pushes` chooses the partition."""

    stream: str
    partition: int | None
    key: bytes | None
    data: bytes
    headers: Sequence[Header]

    @property
    def content(self) -> bytes:
        return content_of(self.data, self.key, self.headers)


def content_of(data: bytes, key: bytes | None, headers: Sequence[Header]) -> bytes:
    """Encodes data, key and headers, to compare messages and to choose a partition. The bytes never change: they are
    those of a `node/stream_push/1` request without its number."""
    return _push_encoder.encode(RichPush(0, data, key, list(headers), None))[:-1]


_push_encoder = bare.Encoder(RichPush)


def read_row(row: dict[str, Any], options: WriteOptions) -> RowToPush | None:
    """Converts a row to a message; None for null data with `nulls=skip`. Raises OptionError."""
    if options.inserts and any(row.get(name) is not None for name in GIVEN_BY_NODE):
        raise OptionError(
            "the node gives each message its index and its time: name other columns, as in INSERT INTO t (key, value), "
            "and create the table with columns 'kafka', whose columns may all be left out"
        )
    stream = options.stream if options.is_for_all else row.get("stream") or row.get("topic") or options.stream
    if stream is None:
        raise OptionError("a row has null in the column 'stream', and there is no option stream")
    headers = list(_headers(row.get("headers") or (), options.nulls))
    message = to_bytes(row["data"] if "data" in row else row["value"])
    if message is None:
        if options.nulls == "error":
            raise OptionError(
                "a row has null in the column 'data'; leave such rows out, or set nulls to empty, skip or mark"
            )
        if options.nulls == "skip":
            return None
        message = b""
        # A row that was read from a marked message has the mark among its headers.
        if options.nulls == "mark" and all(each.name != NULL_HEADER for each in headers):
            headers.append(Header(NULL_HEADER, b""))
    return RowToPush(stream, row.get("partition"), to_bytes(row.get("key")), message, headers)


def _headers(given: Sequence[Any], nulls: str) -> Iterator[Header]:
    for each in given:
        name, value = each["key"], to_bytes(each["value"])
        if value is None and nulls == "skip":
            continue
        if name is None or (value is None and nulls != "empty"):
            raise OptionError(
                f"the header {name!r} of a row has null as its {'name' if name is None else 'value'}, which a message "
                "cannot have; leave it out, or set nulls to empty or skip"
            )
        yield Header(str(name), value or b"")


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def to_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)
