"""Goal: a stream that is made anew repeats its indexes, and the column `era` tells its rows from the earlier ones.

Method: real tables of each format, read by the format's own library; tables as earlier versions wrote them, without the
column, go on with it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.dataset as dataset
import pyarrow.parquet as pq

from spark_export.exporter.tables import write_files
from spark_export.exporter.tables.write_files import ERA, FILE_SCHEMA
from tests.spark_export.exporter.export_world import World

COLUMNS = ["partition", "index", ERA, "data"]
LIBRARIES = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}
EraRows = list[tuple[int, int, int | None, bytes]]


@pytest.fixture(params=LIBRARIES)
def world_of_format(request: pytest.FixtureRequest, world: World) -> World:
    library = LIBRARIES[request.param]
    pytest.importorskip(library, reason=f"the extra `{request.param}` is not installed")
    world.settings = replace(world.settings, format=request.param)
    return world


@pytest.fixture
def without_era(monkeypatch: pytest.MonkeyPatch, world_of_format: World) -> pytest.MonkeyPatch:
    """Tables and files are made as by a version that has no such column, until it is undone."""
    for name in ("FILE_SCHEMA", "FILE_SCHEMA_WITH_STREAM"):
        schema = getattr(write_files, name)
        monkeypatch.setattr(write_files, name, schema.remove(schema.get_field_index(ERA)))
    if world_of_format.settings.format == "delta":
        from spark_export.exporter.tables import delta_table

        monkeypatch.setattr(delta_table, "SCHEMA", delta_table.SCHEMA.remove(delta_table.SCHEMA.get_field_index(ERA)))
    if world_of_format.settings.format == "iceberg":
        from spark_export.exporter.tables import iceberg_table

        monkeypatch.setattr(iceberg_table, "FILE_SCHEMA_WITH_STREAM", write_files.FILE_SCHEMA_WITH_STREAM)
    return monkeypatch


def read(world: World) -> EraRows:
    """The rows by the format's own library, by index and era."""
    table: Any
    if world.settings.format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(world.folder / "messages")).to_pyarrow_table(columns=COLUMNS)
    elif world.settings.format == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        uri = f"sqlite:///{world.folder / 'catalog.sqlite'}"
        catalog = SqlCatalog("stream-node", uri=uri, warehouse=f"file://{world.folder}")
        table = catalog.load_table("export.messages").scan(selected_fields=tuple(COLUMNS)).to_arrow()
        catalog.close()
    else:
        folder = (world.folder / "messages").resolve()
        table = dataset.dataset(folder, schema=FILE_SCHEMA, partitioning="hive").to_table(COLUMNS)
    rows = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
    return sorted(rows, key=lambda row: (row[1], row[2] or 0))


def make_anew(world: World, count: int) -> None:
    with world.client() as client:
        client.create(world.stream).delete()
    world.push(count, partitions=1, size=4)


def test_a_stream_made_anew_has_another_era(world_of_format: World) -> None:
    world = world_of_format
    world.push(3, partitions=1, size=2)
    world.run()
    make_anew(world, 2)
    world.run(accept_lost=True)
    old, new = [b"00", b"01", b"02"], [b"0000", b"0001"]
    wanted = [(0, index, era, data) for era, each in enumerate((old, new)) for index, data in enumerate(each)]
    assert read(world) == sorted(wanted, key=lambda row: (row[1], row[2]))
    assert world.verify().problems == ()


def test_a_table_without_the_column_goes_on_with_it(world_of_format: World, without_era: pytest.MonkeyPatch) -> None:
    world = world_of_format
    world.push(2, partitions=1, size=2)
    world.run()
    assert all(ERA not in pq.read_schema(file).names for file in (world.folder / "messages").rglob("*.parquet"))
    without_era.undo()
    world.push(1, partitions=1, size=3)
    world.run()
    assert read(world) == [(0, 0, None, b"00"), (0, 1, None, b"01"), (0, 2, 0, b"000")]
    assert world.verify().problems == ()
    make_anew(world, 1)
    world.run(accept_lost=True)
    assert [row[2] for row in read(world)] == [None, 1, None, 0]
    assert world.verify().problems == ()


@pytest.mark.parametrize("world_of_format", ["parquet"], indirect=True)
def test_a_compaction_fills_the_column(world_of_format: World, without_era: pytest.MonkeyPatch) -> None:
    world = world_of_format
    world.push(2, partitions=1, size=2)
    world.run()
    without_era.undo()
    world.push(1, partitions=1, size=2)
    world.run()
    make_anew(world, 2)
    world.run(accept_lost=True)
    assert world.compact().merged == 2
    assert [row[2] for row in read(world)] == [0, 1, 0, 1, 0]
    assert world.verify().problems == ()


@pytest.mark.spark
def test_bronze_reads_older_files(spark: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: silver and gold see an era in each row. Method: a file without the column beside one that has it."""
    from spark_export.pipeline.bronze import read_bronze

    schema = write_files.FILE_SCHEMA
    monkeypatch.setattr(write_files, "FILE_SCHEMA", schema.remove(schema.get_field_index(ERA)))
    world.push(1, partitions=1)
    world.run()
    monkeypatch.undo()
    make_anew(world, 1)
    world.run(accept_lost=True)
    rows = read_bronze(spark, Path(world.folder)).select("index", ERA).collect()
    assert sorted(tuple(row) for row in rows) == [(0, 0), (0, 1)]
