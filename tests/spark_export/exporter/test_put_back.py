"""Goal: a table whose log no longer lists files of published runs gets these rows back by a repair, and only by it.

Method: other libraries delete all rows, or put the table back to an earlier version; the data files stay on the disk.
The other tests interrupt a compaction, and look at the old files of an Iceberg table.
"""

from __future__ import annotations

import asyncio
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

from spark_export.exporter.compact import Compactor
from spark_export.exporter.errors import TableDamaged
from spark_export.exporter.job import open_compactor
from spark_export.exporter.model import RunFile
from spark_export.exporter.report import repair_lines
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.table_readers import LIBRARIES, rows_in
from tests.spark_export.exporter.test_repair import repair


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


@pytest.mark.parametrize("how", [put_back, delete_all])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_files_that_the_table_no_longer_lists_are_listed_again(world: World, table_format: str, how: Any) -> None:
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    world.settings = replace(world.settings, format=table_format)
    for _ in range(3):
        world.push(60)
        world.run()
    how(world)
    lacking = [row for row in world.stored() if row not in rows_in(world)]
    assert len(lacking) in (60, 180)
    assert not world.verify().sound
    with pytest.raises(TableDamaged, match="missing from the table"):
        world.compact()
    # Retention has taken the messages away: the rows are only in the files.
    before = world.stored()
    with world.client() as client:
        for part in client.get_stream(world.stream).partitions:
            part.truncate(80)
    done = repair(world)
    assert (done.damaged, len(done.listed_again), done.rows, done.lost) == ((), len(lacking) // 60, 0, 0)
    assert list(repair_lines(done))[-1] in ("1 undamaged file listed again", "3 undamaged files listed again")
    assert rows_in(world) == before
    assert world.verify().problems == ()
    world.push(5)
    assert world.run().rows == 5
    world.compact()
    assert len(rows_in(world)) == 185
    assert world.verify().problems == ()


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
