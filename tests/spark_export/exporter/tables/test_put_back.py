"""Goal: what another program has removed from a table stays out of it, whatever command runs.

Method: other libraries delete rows, merge, compact, or put the table back to an earlier version.
The other tests interrupt a compaction, and look at the old files of an Iceberg table.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa

from spark_export.exporter.errors import ExportMismatch, TableChanged
from spark_export.exporter.model import RunFile
from spark_export.exporter.runs.job import open_compactor
from spark_export.exporter.tables.compact import Compactor
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.table_readers import LIBRARIES, rows_in
from tests.spark_export.exporter.tables.test_repair import repair


def iceberg(world: World) -> Any:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    return catalogs.SqlCatalog(
        "stream-node", uri=f"sqlite:///{world.folder / 'catalog.sqlite'}", warehouse=f"file://{world.folder}"
    )


def put_back(world: World) -> None:
    """Puts the table back by one version, so that it lacks the latest run."""
    if world.settings.format == "delta":
        table = pytest.importorskip("deltalake").DeltaTable(str(world.folder / "messages"))
        table.restore(table.version() - 1)
        return
    catalog = iceberg(world)
    table = catalog.load_table("export.messages")
    table.manage_snapshots().rollback_to_snapshot(table.current_snapshot().parent_snapshot_id).commit()
    catalog.close()


def delete_all(world: World) -> None:
    if world.settings.format == "delta":
        pytest.importorskip("deltalake").DeltaTable(str(world.folder / "messages")).delete()
        return
    catalog = iceberg(world)
    catalog.load_table("export.messages").delete()
    catalog.close()


def delta(world: World) -> Any:
    return pytest.importorskip("deltalake").DeltaTable(str(world.folder / "messages"))


def delete_some(world: World) -> None:
    """A third of each file's rows: the log gets new files in place of those of the runs."""
    delta(world).delete('"index" % 3 = 0')


def delete_and_vacuum(world: World) -> None:
    """As a law about erased data wants it: the files of the deleted rows are gone from the disk, too."""
    table = delta(world)
    table.delete()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def merge(world: World) -> None:
    table = delta(world)
    source = pa.table({"index": pa.array([3, 4], pa.int64())})
    merger = table.merge(source, "target.index = source.index", source_alias="source", target_alias="target")
    merger.when_matched_delete().execute()


def optimize(world: World) -> None:
    assert delta(world).optimize.compact()["numFilesRemoved"] > 1


@pytest.mark.parametrize(
    ("table_format", "how"),
    [
        *[("delta", how) for how in (put_back, delete_all, delete_some, delete_and_vacuum, merge, optimize)],
        *[("iceberg", how) for how in (put_back, delete_all)],
    ],
)
def test_what_another_program_removed_does_not_come_back(world: World, table_format: str, how: Any) -> None:
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    world.settings = replace(world.settings, format=table_format)
    for _ in range(2):
        world.push(60)
        world.run()
    how(world)
    left, files = rows_in(world), sorted(world.folder.rglob("*.parquet"))
    # Each command says who changed the table, and none advises to take an undamaged file out or to repair.
    for command in (world.compact, lambda: repair(world)):
        with pytest.raises(ExportMismatch, match="another program has changed the table") as refused:
            command()
        assert "take" not in str(refused.value).replace("takes", "")
        assert "repair`" not in str(refused.value)
    assert (rows_in(world), sorted(world.folder.rglob("*.parquet"))) == (left, files)
    assert not world.verify().sound
    # The export goes on with what is new.
    world.push(5)
    assert world.run().rows == 5
    assert [row for row in rows_in(world) if row in left] == left
    assert len(rows_in(world)) == len(left) + 5


def mark_deleted(world: World) -> None:
    """What Spark's DELETE writes into the log of a table with deletion vectors, whose bits are inline here."""
    table = delta(world)
    log = world.folder / "messages" / "_delta_log"
    added = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    add = next(line["add"] for line in added if "add" in line)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    vector = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
    actions = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": {**vector, "sizeInBytes": 40, "cardinality": 6}}},
    ]
    (log / f"{table.version() + 1:020}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))


def test_rows_that_are_marked_as_deleted_do_not_come_back(world: World) -> None:
    """The files are those of the runs, so nothing but the mark shows the deletion."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.settings = replace(world.settings, format="delta")
    for _ in range(2):
        world.push(60)
        world.run()
    mark_deleted(world)
    files = sorted(world.folder.rglob("*.parquet"))
    for command in (world.compact, lambda: repair(world)):
        with pytest.raises(ExportMismatch, match="marked as deleted: another program has changed the table"):
            command()
    assert sorted(world.folder.rglob("*.parquet")) == files
    world.push(5)
    assert world.run().rows == 5


@pytest.mark.parametrize("how", [delete_all, delete_some])
def test_a_deletion_during_a_compaction_wins(world: World, how: Any) -> None:
    """Method: another program commits between the plan of the compaction and its commit."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.settings = replace(world.settings, format="delta")
    for _ in range(3):
        world.push(60)
        world.run()

    def write(folder: Path) -> Sequence[RunFile]:
        how(world)
        return []

    async def main() -> None:
        async with open_compactor(world.folder) as compactor:
            await compactor._rewriter.replace(await compactor._rewriter.load_files(), write)

    with pytest.raises(TableChanged, match="another program changed the table meanwhile"):
        asyncio.run(main())
    assert len(rows_in(world)) in (0, 120)


def test_a_compaction_that_is_cancelled_leaves_a_table_that_can_be_used(world: World) -> None:
    """Goal: Ctrl-C ends a compaction when its thread has ended, and its generation is dropped and cleared away.

    Method: the task is cancelled while the thread is held in the middle of writing.
    """
    for _ in range(2):
        world.push(20)
        world.run()
    started, go_on = threading.Event(), threading.Event()

    def write(folder: Path) -> Sequence[RunFile]:
        started.set()
        assert go_on.wait(60)
        return []

    async def interrupt(compactor: Compactor) -> None:
        rewriter = compactor._rewriter
        task = asyncio.create_task(rewriter.replace(await rewriter.load_files(), write))
        await asyncio.to_thread(started.wait, 60)
        task.cancel()
        await asyncio.wait((task,), timeout=0.3)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        async with open_compactor(world.folder) as compactor:
            await interrupt(compactor)

    asyncio.run(main())
    world.push(10)
    world.run()
    assert world.compact().generation == 3, "the number of the dropped generation is not used again"
    world.assert_whole()


def test_the_metadata_of_a_version_that_was_just_replaced_is_kept(world: World) -> None:
    """Goal: a reader that opened an Iceberg table a moment before a run still finds the files of this version.

    Method: the current metadata file looks as if it was written long ago, and is then replaced.
    """
    pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
    world.settings = replace(world.settings, format="iceberg")
    world.push(20)
    world.run()
    catalog = iceberg(world)
    opened = Path(catalog.load_table("export.messages").metadata_location.removeprefix("file://"))
    catalog.close()
    long_ago_s = time.time() - 10 * 86_400
    os.utime(opened, (long_ago_s, long_ago_s))
    world.push(20)
    world.run()
    world.compact(keep_s=3600.0)
    assert opened.exists()
    world.compact(keep_s=0.0)
    assert not opened.exists()
    assert rows_in(world) == world.stored()
    assert world.verify().problems == ()
