"""The decoders of the option `decode`, which turn the contents of messages into columns. Each kind of message has its
own decoder. A message of another kind gives nulls, and the query continues.

For JSON and CBOR objects the user names the columns with `.schema(…)`. Arrow decodes all JSON messages of a batch
together. If Arrow rejects the batch, this module decodes the messages of the batch one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
)

from spark_export.block_decoding import BlockMessages
from spark_export.errors import OptionError

DECODE_NAMES = ("json", "cbor", "cardinal", "block")


class Decoder(Protocol):
    """The interface of a decoder, which turns the keys, data and headers of messages into columns."""

    @property
    def needs_headers(self) -> bool:
        """Whether the decoder needs the headers of messages.

        If False, headers are read only if the query asks for them.
        """
        ...

    def columns(self) -> list[StructField] | None:
        """Returns the columns of this decoder; None if the user names the columns with `.schema(…)`."""
        ...

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        """Returns one array for each of `fields`, with one row for each message. A row is null if the message has no
        value for the field, or a value of another type.
        """
        ...


def find_decoder(name: str | None) -> Decoder | None:
    """Returns the decoder with this name; None if `name` is None. Raises OptionError for an unknown name."""
    if name is None:
        return None
    if name.lower() == "json":
        return JsonObjects()
    if name.lower() == "cbor":
        return CborObjects()
    if name.lower() == "cardinal":
        return CardinalMessages()
    if name.lower() == "block":
        return BlockMessages()
    raise OptionError(f"decode={name!r}: it is {', '.join(DECODE_NAMES)}")


class JsonObjects:
    """The decoder of messages that consist of one JSON object."""

    needs_headers = False

    def columns(self) -> list[StructField] | None:
        return None

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        together = _read_json(data, fields)
        return together if together is not None else object_columns(data, fields, json.loads)


def _read_json(data: pa.Array, fields: Sequence[pa.Field]) -> list[pa.Array] | None:
    """Decodes all messages at once. Returns None if the batch must be decoded message by message.

    This is the case for an empty batch, a binary field, or a message that does not fit the fields or is not one object.
    """
    if not len(data) or any(pa.types.is_binary(field.type) for field in fields):
        return None
    offsets = pa.array([0, len(data)], pa.int32())
    lines = pc.binary_join(pa.ListArray.from_arrays(offsets, data), b"\n")[0].as_buffer()
    parse = arrow_json.ParseOptions(
        explicit_schema=pa.schema([field.with_nullable(True) for field in fields]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    # Arrow reads its input in blocks; one block for all data keeps every object whole.
    read = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(lines), read_options=read, parse_options=parse)
    except pa.ArrowException:
        return None
    if table.num_rows != len(data):
        return None
    return [pa.concat_arrays(table.column(field.name).chunks) for field in fields]


class CborObjects:
    """The decoder of messages that consist of one CBOR map with text keys. Workers need the package cbor2."""

    needs_headers = False

    def columns(self) -> list[StructField] | None:
        return None

    def decode(
        self, keys: pa.Array, data: pa.Array, headers: pa.Array | None, fields: Sequence[pa.Field]
    ) -> list[pa.Array]:
        try:
            import cbor2
        except ImportError as error:
            raise OptionError(
                "decode=cbor needs the package cbor2 on every worker; install the extra `spark`"
            ) from error
        return object_columns(data, fields, cbor2.loads)


def object_columns(data: pa.Array, fields: Sequence[pa.Field], load: Callable[[bytes], Any]) -> list[pa.Array]:
    """Decodes messages one by one with `load`, and returns one column for each of `fields`.

    A message that is no object gives nulls.
    """
    objects = []
    for message in data.to_pylist():
        try:
            found = load(message)
        except (ValueError, RecursionError, OverflowError):
            found = None
        except Exception as error:
            # Some versions of cbor2 raise errors that are no ValueErrors. The module of their type identifies them.
            if type(error).__module__.partition(".")[0] not in ("cbor2", "_cbor2"):
                raise
            found = None
        objects.append(found if isinstance(found, dict) else {})
    return [typed_array([each.get(field.name) for each in objects], field.type) for field in fields]


def typed_array(values: list[Any], wanted: pa.DataType) -> pa.Array:
    """Returns the values as an array of the type `wanted`. A value of another type becomes null."""
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([value if _fits(value, wanted) else None for value in values], wanted)


def _fits(value: Any, wanted: pa.DataType) -> bool:
    try:
        pa.array([value], wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


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

kind: batch, header, item, value, delete, reorg, reorg_complete or ping; null for a message that cannot be decoded.
problem: why the message cannot be decoded, else null. weight: a number of up to 256 bits, in decimal digits."""


class CardinalMessages:
    """The decoder of messages of Cardinal Streams, which uses keys and data. Workers need this project installed."""

    needs_headers = False

    def columns(self) -> list[StructField] | None:
        return list(CARDINAL)

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
    """Returns the values of one row by column name. A column without a value is absent, and becomes null."""
    kinds = {
        "Batch": "batch",
        "SubBatchHeader": "header",
        "SubBatchMsg": "item",
        "BatchMsg": "value",
        "BatchDeleteMsg": "delete",
        "Reorg": "reorg",
        "ReorgComplete": "reorg_complete",
        "Ping": "ping",
    }
    kind = kinds[type(message).__name__]
    row: dict[str, Any] = {"kind": kind, "block_hash": getattr(message, "hash", None)}
    if kind in ("batch", "reorg", "reorg_complete"):
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
