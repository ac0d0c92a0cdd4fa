"""Goal: readers of Delta and Iceberg skip the files that cannot have the rows they look for, and miss none.

Method: the log's minima and maxima are compared with those that deltalake itself writes for the same rows, and with the
rows of each file; a search is given to each library, and the files that it opens are counted.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_export.tables.columns import ROWS as SCHEMA
from spark_export.tables.columns import without
from spark_export.tables.files import FilesWriter
from spark_export.tables.model import FilesPlan
from tests.spark_export.exporter.export_world import World

RUNS, ROWS = 4, 50
"""Each run pushes that many messages into two partitions, and makes one file."""


def exported(world: World, table_format: str) -> None:
    world.settings = replace(world.settings, format=table_format)
    for _ in range(RUNS):
        world.push(ROWS)
        assert world.run().files == 1


def batch(times: list[datetime], keys: list[bytes | None]) -> pa.RecordBatch:
    count = len(times)
    columns: dict[str, Any] = {
        "index": [2**60 + number for number in range(count)],
        "timestamp": times,
        "key": keys,
        "headers": [None] * count,
        "data": [b"x"] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA if field.name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


@pytest.mark.parametrize("microseconds", [[0, 1], [999_000, 999_001], [123_456, 123_499, 7]])
def test_a_files_statistics_are_those_of_deltalakes_own_writer(tmp_path: Path, microseconds: list[int]) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    base = datetime(2026, 3, 4, 23, 59, 58, tzinfo=UTC)
    times, keys = [base + timedelta(microseconds=each) for each in microseconds], [None, b"k", b"k"]
    writer = FilesWriter(FilesPlan(str(tmp_path), without(SCHEMA, ["stream"]), ()))
    writer.write("s", 1, 3, batch(times, keys[: len(times)]))
    (entry,) = writer.close()
    deltalake.write_deltalake(str(tmp_path / "theirs"), pq.read_table(tmp_path / entry.path))
    (log,) = (tmp_path / "theirs" / "_delta_log").glob("*.json")
    (add,) = [line["add"] for line in map(json.loads, log.read_text().splitlines()) if "add" in line]
    ours, theirs = json.loads(entry.stats), json.loads(add["stats"])
    assert ours.pop("nullCount") == {**theirs.pop("nullCount"), "key": 1}
    bounds = [
        datetime.fromisoformat(each[side].pop("timestamp"))
        for each in (ours, theirs)
        for side in ("minValues", "maxValues")
    ]
    assert ours == theirs
    # deltalake rounds the maximum to the nearest millisecond, which can be before the row: ours never is.
    assert bounds[0] == bounds[2] <= min(times)
    assert max(times) <= bounds[1] < max(times) + timedelta(milliseconds=1)
    assert abs(bounds[1] - bounds[3]) <= timedelta(milliseconds=1)


def test_delta_opens_the_files_of_the_indexes_alone(world: World) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    exported(world, "delta")
    table = deltalake.DeltaTable(str(world.folder / "messages"))
    adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert len(adds) == RUNS
    for add in adds:
        rows = pq.read_table(world.folder / "messages" / add["path"])
        for name in ("partition", "index", "era"):
            assert (add[f"min.{name}"], add[f"max.{name}"]) == tuple(pc.min_max(rows[name]).as_py().values())
        times = pc.min_max(rows["timestamp"]).as_py()
        assert times["min"] - add["min.timestamp"] < timedelta(milliseconds=1)
        assert timedelta(0) <= add["max.timestamp"] - times["max"] < timedelta(milliseconds=1)
    dataset = table.to_pyarrow_dataset()
    wanted = (pc.field("index") >= ROWS) & (pc.field("partition") == 1)
    # Two partitions take turns: index ROWS begins with the third run.
    assert len(list(dataset.get_fragments(filter=wanted))) == RUNS - 2
    found = dataset.to_table(columns=["stream", "partition", "index", "data"], filter=wanted).to_pylist()
    assert {tuple(row.values()) for row in found} == {row for row in world.stored() if row[1] == 1 and row[2] >= ROWS}
    # Readers add a millisecond to a maximum, since most writers cut it off.
    late = pc.field("timestamp") > max(add["max.timestamp"] for add in adds) + timedelta(milliseconds=1)
    assert list(dataset.get_fragments(filter=late)) == []


def test_a_compaction_keeps_deltas_statistics(world: World) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    exported(world, "delta")
    world.compact()
    (add,) = pa.table(deltalake.DeltaTable(str(world.folder / "messages")).get_add_actions(flatten=True)).to_pylist()
    assert (add["min.index"], add["max.index"], add["num_records"]) == (0, RUNS * ROWS // 2 - 1, RUNS * ROWS)
    assert add["null_count.index"] == 0


def test_iceberg_opens_the_files_of_the_indexes_alone(world: World) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql", reason="the extra `iceberg` is not installed")
    exported(world, "iceberg")
    catalog = catalogs.SqlCatalog("stream-node", uri=f"sqlite:///{world.folder / 'catalog.sqlite'}")
    try:
        table = catalog.load_table("export.messages")
        wanted = table.scan(row_filter=f"index >= {ROWS} and partition = 1")
        assert len(list(table.scan().plan_files())) == RUNS
        assert len(list(wanted.plan_files())) == RUNS - 2
        ids = {field.name: field.field_id for field in table.schema().fields}
        for task in table.scan().plan_files():
            for name in ("stream", "partition", "index", "timestamp", "era"):
                assert ids[name] in task.file.lower_bounds, name
                assert ids[name] in task.file.upper_bounds, name
                assert task.file.null_value_counts[ids[name]] == 0
        found = {(row["index"], row["data"]) for row in wanted.to_arrow().to_pylist()}
        assert found == {(row[2], row[3]) for row in world.stored() if row[1] == 1 and row[2] >= ROWS}
    finally:
        catalog.close()
