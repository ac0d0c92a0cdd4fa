"""The columns of an exported table, and how a table of somebody else can take them.

This module runs on Spark executors. It reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_export.tables.errors import TableRefused

_HEADER = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)])
HEADERS = pa.list_(pa.field("element", _HEADER, nullable=False))
ROWS = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("era", pa.int32()),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
"""The columns of a table that the exporter makes.

era: how often the stream was deleted and created again before this message; 0 for never. A stream that is created again
repeats its indexes, so `stream`, `partition`, `era` and `index` together name one message for good. Null stands for 0.
"""
DATE = pa.field("date", pa.date32(), nullable=False)
"""The UTC date on which the node stored the message, in tables whose partitions are columns (Delta and folders)."""
ALWAYS = ("era", "headers")
"""The columns that a table may have as NOT NULL: `era` is never null, and null `headers` become an empty list."""
NEEDED = ("stream", "partition", "index")
"""The columns without which a row of a table does not say which message it is."""


def fitting(table: pa.Schema, ours: pa.Schema, address: str) -> pa.Schema:
    """Returns the columns that files for a table have: those of `ours` that the table has, with the table's types.

    The other columns of the table stay null. Raises TableRefused if the table cannot take the rows.
    """
    fields, wrong = [], []
    for field in table:
        at = ours.get_field_index(field.name)
        if at < 0:
            if not field.nullable:
                wrong.append(f"its column {field.name} may not be null, and a message has no such column")
        elif not field.nullable and ours.field(at).nullable and field.name not in ALWAYS:
            wrong.append(f"its column {field.name} may not be null, and that of a message can be")
        elif _fits(ours.field(at).type, field.type):
            kind = field.type if pa.types.is_integer(field.type) else ours.field(at).type
            fields.append(pa.field(field.name, kind, field.nullable))
        else:
            wrong.append(f"its column {field.name} is {field.type}, and the exporter writes {ours.field(at).type}")
    wrong += [f"it lacks the column {name}" for name in NEEDED if name not in table.names]
    # Without this, the decoded columns of an export whose table is older would be left out in silence.
    decoded = (name for name in ours.names if name not in {*ROWS.names, DATE.name, *table.names})
    wrong += [f"it lacks the decoded column {name}; add it, or export into a new table" for name in decoded]
    if wrong:
        raise TableRefused(f"the table {address} cannot take the messages: {'; '.join(wrong)}")
    return pa.schema(fields)


def _fits(ours: pa.DataType, theirs: pa.DataType) -> bool:
    if theirs == ours:
        # The files of a user's own table are merged with its own types, such as a time without a zone.
        return True
    if pa.types.is_integer(ours):
        return bool(pa.types.is_signed_integer(theirs) and theirs.bit_width >= ours.bit_width)
    if pa.types.is_timestamp(ours):
        return bool(pa.types.is_timestamp(theirs) and theirs.unit == "us" and theirs.tz is not None)
    return _same(ours, theirs)


def _same(ours: pa.DataType, theirs: pa.DataType) -> bool:
    """Returns whether two types have the same values. The names and the nullability of the parts of lists and maps, and
    the size of offsets, may differ: the table's library chooses them."""
    if pa.types.is_list(ours):
        is_list = pa.types.is_list(theirs) or pa.types.is_large_list(theirs)
        return is_list and _same(ours.value_type, theirs.value_type)
    if pa.types.is_map(ours):
        is_map = pa.types.is_map(theirs)
        return is_map and _same(ours.key_type, theirs.key_type) and _same(ours.item_type, theirs.item_type)
    if pa.types.is_struct(ours):
        if not pa.types.is_struct(theirs) or [each.name for each in ours] != [each.name for each in theirs]:
            return False
        return all(_same(one.type, other.type) for one, other in zip(ours, theirs, strict=True))
    large = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
    return bool(theirs == ours) or bool(theirs == large.get(ours))


def without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names])
