"""Chooses the decoder of the option `decode`, which turns the contents of messages into columns.

Each kind of message has its own decoder. A message of another kind gives nulls, and the query continues. The row of a
message depends on this message alone. The package `spark_export.decode` contains the decoders of JSON, CBOR, Avro and
Protobuf, whose columns the user names with `.schema(…)`. This module contains the decoder of Cardinal Streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
)

from spark_export.errors import OptionError
from spark_export.source.options import ReadOptions

DECODE_NAMES = ("json", "cbor", "avro", "protobuf", "cardinal", "block")


class MessageDecoder(Protocol):
    """The interface of a decoder, which turns the keys, data and headers of messages into columns."""

    @property
    def needs_headers(self) -> bool: ...

    def columns(self) -> list[StructField] | None:
        """Returns the columns of this decoder; None if the user names the columns with `.schema(…)`."""
        ...

    def check(self, fields: Sequence[pa.Field]) -> None:
        """Raises OptionError if messages cannot be decoded into these columns. The driver calls this method."""
        ...

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        """Returns one array for each of `fields`, with one row for each message: null if the message has no value for
        the field, or a value of another type."""
        ...


def find_decoder(options: ReadOptions) -> MessageDecoder | None:
    """Returns the decoder of the option `decode`; None without this option. Raises OptionError."""
    if options.decode is None:
        return None
    from spark_export.decode.rows import RowRules

    name, rules = options.decode.lower(), RowRules(options.corrupt_column, options.problem_column, options.time_zone)
    if name in ("json", "cbor"):
        from spark_export.decode.objects import CborObjects, JsonObjects

        return JsonObjects(rules) if name == "json" else CborObjects(rules)
    if name == "avro":
        from spark_export.decode.avro import AvroRecords

        return AvroRecords(rules, options.schemas)
    if name == "protobuf":
        from spark_export.decode.protobuf import ProtobufMessages

        return ProtobufMessages(rules, options.schemas)
    if name == "cardinal":
        return CardinalMessages()
    if name == "block":
        from spark_export.source.block_decoding import BlockMessages

        return BlockMessages()
    raise OptionError(f"decode={options.decode!r}: it is {', '.join(DECODE_NAMES)}")


CARDINAL = (
    StructField("kind", StringType()),
    StructField("block_hash", BinaryType()),
    StructField("block_number", LongType()),
    StructField("parent_hash", BinaryType()),
    StructField("weight", StringType()),
    StructField("path", StringType()),
    StructField("value", BinaryType()),
    StructField("sub_batch_id", BinaryType()),
    StructField("item_index", IntegerType()),
    StructField("item_count", IntegerType()),
    StructField("values", MapType(StringType(), BinaryType(), False)),
    StructField("deletes", ArrayType(StringType(), False)),
    StructField("counts", MapType(StringType(), IntegerType(), False)),
    StructField("sub_batches", MapType(StringType(), BinaryType(), False)),
    StructField("problem", StringType()),
)
"""The columns of the option `decode=cardinal`. Each row describes one message of Cardinal Streams.

kind: batch, header, item, value, delete, reorg, reorg_complete, reorg_abandoned or ping; null for a message that cannot
be decoded.
problem: why the message cannot be decoded, else null.
weight: a number of up to 256 bits, in decimal digits.
"""


class CardinalMessages:
    """The decoder of messages of Cardinal Streams, which uses their keys and data."""

    needs_headers = False

    def columns(self) -> list[StructField] | None:
        return list(CARDINAL)

    def check(self, fields: Sequence[pa.Field]) -> None:
        """Does nothing, because the columns of this decoder have fixed types."""

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        try:
            from cardinal_streams.errors import MessageError
            from cardinal_streams.message.messages import decode
        except ImportError as error:
            raise OptionError("decode=cardinal needs stream-node installed on every worker") from error
        rows: list[dict[str, Any]] = []
        for key, value in zip(keys.to_pylist(), data.to_pylist(), strict=True):
            try:
                rows.append(cardinal_row(decode(key or b"", value)))
            except MessageError as error:
                rows.append({"problem": str(error)})
        return [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]


def cardinal_row(message: Any) -> dict[str, Any]:
    """Returns the values of one row by column name. Columns that will be null are absent."""
    kinds = {
        "Batch": "batch",
        "SubBatchHeader": "header",
        "SubBatchMsg": "item",
        "BatchMsg": "value",
        "BatchDeleteMsg": "delete",
        "Reorg": "reorg",
        "ReorgComplete": "reorg_complete",
        "ReorgAbandoned": "reorg_abandoned",
        "Ping": "ping",
    }
    kind = kinds[type(message).__name__]
    row: dict[str, Any] = {"kind": kind, "block_hash": getattr(message, "hash", None)}
    if kind in ("batch", "reorg", "reorg_complete", "reorg_abandoned"):
        row["block_number"] = message.number
    if kind == "batch":
        row |= {"parent_hash": message.parent, "weight": str(message.weight)}
        row |= {"values": message.values, "deletes": sorted(message.deletes)}
        row |= {"counts": message.counts, "sub_batches": message.sub_batches}
    elif kind in ("value", "delete"):
        row |= {"path": message.key, "value": getattr(message, "value", None)}
    elif kind == "header":
        row |= {"sub_batch_id": message.id, "item_count": message.item_count}
    elif kind == "item":
        row |= {"sub_batch_id": message.id, "item_index": message.index}
        row |= {"values": message.updates, "deletes": list(message.deletes)}
    return row
