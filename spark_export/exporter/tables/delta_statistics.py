"""Computes the statistics of a Parquet file for a Delta table's log: row count, minimum, maximum, number of nulls.

Readers use the statistics to skip files. A reader that selects a range of indexes or times opens only the files whose
minimum and maximum overlap this range.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.exporter.errors import TableDamaged
from spark_export.exporter.tables.write_files import ERA
from spark_export.store.paths import FilePath

BOUNDED = ("partition", "index", "timestamp", ERA)
"""The columns whose minimum and maximum go into the log. Delta stores none for binary columns such as `data`."""
COUNTED = (*BOUNDED, "key")
"""The columns whose number of nulls goes into the log."""
MILLISECOND = timedelta(milliseconds=1)


def read_delta_statistics(path: FilePath) -> str:
    """Returns the statistics of a Parquet file, from its footer, as the JSON text of Delta's protocol.

    Raises TableDamaged if the footer cannot be read, and FileNotFoundError.
    """
    try:
        with path.open("rb") as file:
            metadata = pq.ParquetFile(file).metadata
    except pa.ArrowException as error:
        raise TableDamaged(f"{path} cannot be read: {error}") from error
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
        if name in COUNTED and all(each is not None and each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        # A row group whose values are all null has no minimum and does not affect the bounds.
        bounds = [each for each in found if each is not None and each.has_min_max]
        known = all(each is not None and (each.has_min_max or each.num_values == 0) for each in found)
        if name in BOUNDED and bounds and known:
            least[name] = _lower(min(each.min for each in bounds))
            greatest[name] = _upper(max(each.max for each in bounds))
    return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _lower(value: int | datetime) -> int | str:
    return value if isinstance(value, int) else _text(value)


def _upper(value: int | datetime) -> int | str:
    """Returns the maximum of a column for the log. Milliseconds are rounded up, so that no row's time is greater."""
    if isinstance(value, int):
        return value
    return _text(value + MILLISECOND if value.microsecond % 1000 else value)


def _text(value: datetime) -> str:
    """Returns the time as text in UTC, rounded down to milliseconds."""
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
