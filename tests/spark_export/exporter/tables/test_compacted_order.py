"""Goal: the rows of a merged file are ordered by partition and index, as the sort order of an Iceberg table says.

Method: runs of several tasks and partitions, merged in both formats that the exporter merges itself; the merged file is
read by pyarrow alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.files import write_ranges
from spark_export.tables.log import open_table
from spark_export.tables.model import Incarnation, IndexRange, Written

AT = datetime(2026, 11, 1, tzinfo=UTC)


def messages(wanted: IndexRange) -> Iterator[Any]:
    rows: list[dict[str, Any]] = [
        {"index": index, "timestamp": AT, "key": None, "headers": [], "data": b"d"}
        for index in range(wanted.begin, wanted.end)
    ]
    names = ["index", "timestamp", "key", "headers", "data"]
    yield from pa.Table.from_pylist(rows, pa.schema([ROWS.field(name) for name in names])).to_batches()


@pytest.mark.parametrize(("table_format", "library"), [("parquet", "pyarrow"), ("iceberg", "pyiceberg")])
def test_merged_rows_are_ordered(tmp_path: Path, table_format: str, library: str) -> None:
    pytest.importorskip(library, reason=f"the extra `{table_format}` is not installed")
    log = open_table(parse_place(tmp_path), table_format)
    log.create(ROWS)
    for begin in (0, 6, 12, 18):
        plan = log.files_plan(log.load(), ROWS)
        parts = [IndexRange(Incarnation("s", part, 0, 5), begin, begin + 6) for part in (1, 0)]
        # The tasks of a run end in any order, and the second one has both partitions.
        tasks = [[each.cut(begin + 3, begin + 6) for each in parts], [each.cut(begin, begin + 3) for each in parts]]
        written = [write_ranges(task, messages, plan) for task in tasks]
        ranges = [each for one in written for each in one.ranges]
        log.append(plan, Written([file for one in written for file in one.files], ranges))
    assert log.compact() == 8
    (file,) = log.list_files()
    found = pq.ParquetFile(file.address.removeprefix("file://")).read(columns=["partition", "index"])
    assert [(each["partition"], each["index"]) for each in found.to_pylist()] == [
        (part, index) for part in (0, 1) for index in range(24)
    ]
