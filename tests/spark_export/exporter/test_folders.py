"""Goal: any stream's name can be exported or is refused with a reason, and a folder whose parts do not belong together
is never written to.

Method: names that are hard for paths, read by pyarrow and by Spark; ledgers that are lost or put back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.dataset as dataset

from spark_export.exporter.errors import ExportError, ExportMismatch
from spark_export.exporter.node_side import Selection
from spark_export.exporter.tables.hive_names import stream_folder
from spark_export.pipeline.bronze import read_bronze
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_crashes import export_child

NAMES = ["ü/日本=x%41", "a b", "7", ",", " ", "a\nb\t", "q'\"`", ".", "..", "%2F", "x" * 248]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an export of streams whose names are hard, a message each."""
    folder = tmp_path_factory.mktemp("named")
    with NodeProcess(folder / "data", arguments=("--log-level", "error")) as node:
        world = World(folder / "lake", node, "")
        for name in NAMES:
            world.push(1, partitions=1, stream=name)
        assert world.run(selection=Selection()).rows == len(NAMES)
        assert world.verify().sound
        yield world.folder


def test_hard_names_are_read_by_pyarrow(named: Path) -> None:
    fields = pa.schema([("run", pa.int32()), ("stream", pa.string()), ("date", pa.date32())])
    place = (named / "messages").resolve()
    table = dataset.dataset(place, partitioning=dataset.partitioning(fields, flavor="hive")).to_table(["stream"])
    assert sorted(table.column("stream").to_pylist()) == sorted(NAMES)


@pytest.mark.spark
def test_hard_names_are_read_by_spark(named: Path, spark: Any) -> None:
    """Spark takes an escaped byte for a character: what is not ASCII must stand as it is."""
    assert sorted(row[0] for row in read_bronze(spark, named).select("stream").collect()) == sorted(NAMES)


def test_a_name_too_long_for_a_folder_is_refused_before_anything_is_written(world: World) -> None:
    name = "é" * 130
    world.push(1, partitions=1, stream=name)
    with pytest.raises(ExportError, match="267 bytes, and file systems take 255: leave it out"):
        world.run(selection=Selection((name,)))
    assert len(stream_folder(name).encode()) == 267
    assert list((world.folder / "staging").iterdir()) == []
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.folder = world.folder.with_name("delta")
    assert world.run(folder=world.folder, selection=Selection((name,)), format="delta").rows == 1


def test_a_folder_whose_ledger_is_gone_is_refused(world: World) -> None:
    """A new ledger would export everything again beside what is there."""
    world.push(3)
    world.run()
    (world.folder / "ledger.sqlite").unlink()
    with pytest.raises(ExportMismatch, match=r"holds a table, and ledger\.sqlite is missing"):
        world.run()
    assert len(world.rows()) == 3


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("left", [None, "writing"])
def test_a_ledger_that_was_put_back_is_refused_and_harms_nothing(
    world: World, tmp_path: Path, table_format: str, left: str | None
) -> None:
    """Its next run has a number that the table has: neither may be taken for the other. Method: a ledger of before the
    last run, with that run unknown, or begun."""
    if table_format != "parquet":
        library = {"delta": "deltalake", "iceberg": "pyiceberg"}[table_format]
        pytest.importorskip(library, reason=f"the extra `{table_format}` is not installed")
    world.push(10)
    world.run(format=table_format)
    ledger, kept = world.folder / "ledger.sqlite", tmp_path / "kept"
    shutil.copy(ledger, kept)
    world.push(10)
    if left is not None:
        begun = tmp_path / "begun"
        shutil.copytree(world.folder, begun, symlinks=True)
        genuine, world.folder = world.folder, begun
        export_child(world, "run", "planned", table_format)
        world.folder = genuine
        shutil.copy(begun / "ledger.sqlite", kept)
    world.run(format=table_format)
    files = sorted(path.read_bytes() for path in (world.folder / "messages").resolve().rglob("*.parquet"))
    shutil.copy(kept, ledger)
    for _ in range(2):
        with pytest.raises(ExportMismatch, match="the ledger was put back to an earlier state"):
            world.run(format=table_format)
        assert "is in the table, and no run wrote it" in world.verify().problems[0]
    assert sorted(path.read_bytes() for path in (world.folder / "messages").resolve().rglob("*.parquet")) == files


def test_another_consumer_than_the_folders_is_refused(world: World) -> None:
    """The option would have no effect, and the lag that one watches would never move."""
    world.push(2)
    world.run(client_id="one")
    with pytest.raises(ExportMismatch, match="under the consumer 'one', not 'two'"):
        world.run(client_id="two")
    world.push(1)
    assert world.run().rows == 1
    assert world.position(0, "one") + world.position(1, "one") == 3
