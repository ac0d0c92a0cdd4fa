"""Goal: a task of Spark gets exactly the rows of its ranges, whatever the format. Method: the same rows in
a table of each format, read as the tasks do it, without Spark.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")

from spark_export.pipeline.bronze import BronzeTable, Ranges, TableSource, find_ends, plan_files, read_part
from spark_export.tables.errors import TableDamaged
from spark_export.tables.log import CatalogChoice
from tests.spark_export.pipeline.lake import Lake, Row

ODD, HIVES = "a b/ü%", "__HIVE_DEFAULT_PARTITION__"
FORMATS = ("parquet", "delta", "iceberg")


def filled(folder: Path, table_format: str) -> Lake:
    lake = Lake(folder / "lake", table_format)
    header = [{"key": "h", "value": b"v"}]
    first: list[Row] = [(0, index, index, b"k", header, b"%d" % index) for index in range(4)]
    lake.add_run({ODD: first, HIVES: [(0, 0, 0, None, [], b"z")]})
    later: list[Row] = [(0, index, index + 86_400, b"k", [], b"%d" % index) for index in range(4, 8)]
    lake.add_run({ODD: [*later, (1, 5, 5, None, [], b"p1")]})
    lake.add_run({ODD: [(0, index, index, None, [], b"new%d" % index) for index in range(2)]}, {ODD: 1})
    return lake


def read(lake: Lake, ranges: Ranges | None) -> list[tuple[Any, ...]]:
    names = ("stream", "partition", "era", "index", "data")
    return sorted(
        tuple(row[name] for name in names)
        for task in plan_files(lake.table, ranges)
        for batch in read_part(lake.table, task.value)
        for row in batch.to_pylist()
    )


@pytest.mark.parametrize("table_format", FORMATS)
def test_ranges_of_a_table(tmp_path: Path, table_format: str) -> None:
    lake = filled(tmp_path, table_format)
    assert find_ends(lake.log) == {(ODD, 0, 0): 8, (ODD, 1, 0): 6, (ODD, 0, 1): 2, (HIVES, 0, 0): 1}
    old = [(ODD, 0, 0, index, b"%d" % index) for index in range(8)]
    new = [(ODD, 0, 1, index, b"new%d" % index) for index in range(2)]
    other, hives = (ODD, 1, 0, 5, b"p1"), (HIVES, 0, 0, 0, b"z")
    assert read(lake, None) == sorted([*old, *new, other, hives])
    assert read(lake, {(ODD, 0, 0): (2, 6)}) == old[2:6]
    assert read(lake, {(ODD, 0, 1): (0, 1), (ODD, 1, 0): (0, 9), (HIVES, 0, 0): (0, 1)}) == [hives, new[0], other]
    assert read(lake, {("none", 0, 0): (0, 9)}) == read(lake, {}) == []
    lake.log.compact()
    assert read(lake, {(ODD, 0, 0): (2, 6)}) == old[2:6]


def test_rows_that_another_program_removed(tmp_path: Path) -> None:
    """Goal: what left the table by another program's commit is not read. Method: one row, and a whole stream."""
    from deltalake import DeltaTable

    delta, iceberg = filled(tmp_path / "delta", "delta"), filled(tmp_path / "iceberg", "iceberg")
    DeltaTable(delta.log.address).delete("index = 3")
    assert [row[3] for row in read(delta, {(ODD, 0, 0): (2, 6)})] == [2, 4, 5]
    iceberg.log._open().delete(f"stream = '{HIVES}'")  # type: ignore[attr-defined]
    assert {row[0] for row in read(iceberg, None)} == {ODD}


def test_a_damaged_page_is_told(tmp_path: Path) -> None:
    """Goal: no damaged value is passed on. Method: a flipped bit in the data of a message."""
    lake, data = Lake(tmp_path / "lake"), random.Random(1).randbytes(1_000)
    lake.add_run({"orders": [(0, 0, 0, None, [], data)]})
    (path,) = (lake.folder / "messages").resolve().rglob("*.parquet")
    content = bytearray(path.read_bytes())
    content[content.index(data[100:116])] ^= 1
    path.write_bytes(content)
    with pytest.raises(TableDamaged, match="missing or damaged"):
        read(lake, None)


def test_options_name_the_table(tmp_path: Path) -> None:
    """Goal: a task opens the table that the user named. Method: the options as Spark sends them, in lower case."""
    catalog = CatalogChoice("mine", {"uri": "sqlite://"}, "a.b")
    table = BronzeTable("s3://bucket/lake", "iceberg", {"region": "eu"}, catalog)
    given = {name.lower(): value for name, value in table.options().items()}
    assert BronzeTable.of(TableSource(given).options) == BronzeTable.of(TableSource(table.options()).options) == table


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_stream_takes_what_is_new_in_small_steps(tmp_path: Path, table_format: str) -> None:
    """Goal: the offsets of a query go from the start to the table's positions, without a row twice. Method: three rows
    a step, and rows that come meanwhile, which a query with a fixed end leaves to the next one."""
    from spark_export.source.spark_versions import ReadAllAvailable, ReadMaxRows

    lake = filled(tmp_path, table_format)
    source = TableSource({**lake.table.options(), "rows_max": "3"})
    reader: Any = source.streamReader(None)
    reader.prepareForTriggerAvailableNow()
    lake.add_run({HIVES: [(0, 1, 1, None, [], b"later")]})
    offset, seen, steps = reader.initialOffset(), list[Any](), 0
    while (following := reader.latestOffset(offset, ReadMaxRows(3))) != offset:
        for task in reader.partitions(offset, following):
            seen += [row for batch in reader.read(task) for row in batch.to_pylist()]
        offset, steps = following, steps + 1
    places = [(row["stream"], row["partition"], row["era"], row["index"]) for row in seen]
    assert len(places) == len(set(places)) == 12
    assert steps > 2
    late: Any = source.streamReader(None)
    assert late.latestOffset(offset, ReadAllAvailable()) != offset
