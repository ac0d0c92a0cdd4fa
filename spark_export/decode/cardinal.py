"""Decodes messages of Cardinal Streams, by their keys and data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_export.decode.decoding import MessageDecoder
from spark_export.errors import OptionError

CARDINAL = pa.schema(
    {
        "kind": pa.string(),
        "block_hash": pa.binary(),
        "block_number": pa.int64(),
        "parent_hash": pa.binary(),
        "weight": pa.string(),
        "path": pa.string(),
        "value": pa.binary(),
        "sub_batch_id": pa.binary(),
        "item_index": pa.int32(),
        "item_count": pa.int32(),
        "values": pa.map_(pa.string(), pa.field("value", pa.binary(), False)),
        "deletes": pa.list_(pa.field("element", pa.string(), False)),
        "counts": pa.map_(pa.string(), pa.field("value", pa.int32(), False)),
        "sub_batches": pa.map_(pa.string(), pa.field("value", pa.binary(), False)),
        "problem": pa.string(),
    }
)
"""The columns of the option `decode=cardinal`. Each row describes one message of Cardinal Streams.

kind: batch, header, item, value, delete, reorg, reorg_complete, reorg_abandoned or ping; null for a message that cannot
be decoded.
problem: why the message cannot be decoded, else null.
weight: a number of up to 256 bits, in decimal digits.
"""
KINDS = {
    **{"Batch": "batch", "SubBatchHeader": "header", "SubBatchMsg": "item", "BatchMsg": "value"},
    **{"BatchDeleteMsg": "delete", "Reorg": "reorg", "ReorgComplete": "reorg_complete"},
    **{"ReorgAbandoned": "reorg_abandoned", "Ping": "ping"},
}


class CardinalDecoder(MessageDecoder):
    """The decoder of messages of Cardinal Streams."""

    def _rows(self, keys: pa.Array, data: pa.Array, headers: pa.Array | None) -> list[dict[str, Any]]:
        try:
            from cardinal_streams.errors import MessageError
            from cardinal_streams.message.messages import decode
        except ImportError as error:
            raise OptionError("decode=cardinal needs stream-node installed on every worker") from error
        rows = []
        for key, value in zip(keys.to_pylist(), data.to_pylist(), strict=True):
            try:
                rows.append(cardinal_row(decode(key or b"", value)))
            except MessageError as error:
                rows.append({"problem": str(error)})
        return rows


def cardinal_row(message: Any) -> dict[str, Any]:
    """Returns the values of one row by column name. Absent columns are null."""
    kind = KINDS[type(message).__name__]
    row: dict[str, Any] = {"kind": kind, "block_hash": getattr(message, "hash", None)}
    if kind in ("batch", "reorg", "reorg_complete", "reorg_abandoned"):
        row["block_number"] = message.number
    if kind == "batch":
        row |= {"parent_hash": message.parent, "weight": str(message.weight)}
        row |= {"values": _named(message.values), "deletes": [*map(_key_text, sorted(message.deletes))]}
        row |= {"counts": _named(message.counts), "sub_batches": _named(message.sub_batches)}
    elif kind in ("value", "delete"):
        row |= {"path": _key_text(message.key), "value": getattr(message, "value", None)}
    elif kind == "header":
        row |= {"sub_batch_id": message.id, "item_count": message.item_count}
    elif kind == "item":
        row |= {"sub_batch_id": message.id, "item_index": message.index}
        row |= {"values": _named(message.updates), "deletes": [*map(_key_text, message.deletes)]}
    return row


def _key_text(key: str) -> str:
    """Returns an application's key for a column. Bytes that are not UTF-8 (surrogates in `key`) become U+FFFD."""
    return key.encode(errors="surrogateescape").decode(errors="replace")


def _named(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(_key_text(key), value) for key, value in values.items()]
