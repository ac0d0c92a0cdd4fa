"""Goal: one table has one consumer: two tables that share one are noticed before one hides the other's lost data.

Method: folders of the same last name, copied, moved and put back, on one node; ledgers of earlier versions.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import DataLost, ExportMismatch, StreamsLeftOut
from spark_export.exporter.runs.job import adopt_table
from stream_client.blocking import set_position
from tests.cli.promised import promised
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_crashes import export_child


def beside(world: World, folder: Path) -> World:
    """Another export of the same stream and node."""
    return World(folder, world.node, world.stream)


def age(world: World, client_id: str) -> None:
    """Makes the ledger one of an earlier version: its consumer has only the folder's name, and its place is unknown."""
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE export SET client_id = ?", (client_id,))
        ledger.execute("DROP TABLE places")


def adopt(world: World, client_id: str | None = None) -> str:
    return asyncio.run(adopt_table(world.folder, world.node.address, client_id))


def test_two_folders_of_one_name_have_a_consumer_each(world: World, tmp_path: Path) -> None:
    """Before, both saved under `export-lake`: a node that was put back was noticed by neither."""
    one, two = beside(world, tmp_path / "a" / "lake"), beside(world, tmp_path / "b" / "lake")
    world.push(10)
    one.run()
    world.push(10)
    two.run()
    assert one.consumer() != two.consumer()
    assert (one.position(0), two.position(0)) == (5, 10)
    # The node forgets what `one` saved, as a backup that was put back would.
    with world.client() as client:
        set_position(client, one.consumer(), world.stream, 0, 2)
    with pytest.raises(StreamsLeftOut, match="it was put back to an earlier state"):
        one.run()
    assert two.run().run_id is None


def test_two_old_folders_that_share_a_consumer_are_noticed(world: World, tmp_path: Path) -> None:
    one, two = beside(world, tmp_path / "a" / "lake"), beside(world, tmp_path / "b" / "lake")
    world.push(10)
    for each in (one, two):
        each.run()
        age(each, "export-lake")
    # Both begin where they end, as their own earlier version left them.
    with world.client() as client:
        for partition in (0, 1):
            set_position(client, "export-lake", world.stream, partition, 5)
    world.push(10)
    assert one.run().rows == 10
    with pytest.raises(ExportMismatch, match="another table saves under the same name") as refused:
        two.run()
    assert "export adopt" in str(refused.value)
    assert "export-lake-" in adopt(two)
    assert two.run().rows == 10
    assert one.run().run_id is None
    world.push(3)
    assert (one.run().rows, two.run().rows) == (3, 3)
    for each in (one, two):
        each.assert_whole()


def test_a_copy_is_refused_and_adopted(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    copy = beside(world, tmp_path / "copy")
    shutil.copytree(world.folder, copy.folder, symlinks=True)
    world.push(4)
    with pytest.raises(ExportMismatch, match=f"copy is a copy of {world.folder}"):
        copy.run()
    adopt(copy)
    assert copy.run().rows == 4
    assert world.run().rows == 4
    assert copy.consumer() != world.consumer()
    for each in (copy, world):
        each.assert_whole()


def test_a_copy_whose_original_is_out_of_sight_is_noticed_by_its_position(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    shutil.copytree(world.folder, tmp_path / "copy", symlinks=True)
    original, away = world.folder, tmp_path / "away"
    world.folder.rename(away)
    copy = beside(world, tmp_path / "copy")
    world.push(4)
    assert copy.run().rows == 4
    away.rename(original)
    with pytest.raises(ExportMismatch, match="another table saves under the same name"):
        world.run()


def test_a_folder_that_was_moved_keeps_its_consumer(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    before = world.consumer()
    world.folder = world.folder.rename(tmp_path / "moved")
    moved = beside(world, world.folder)
    world.push(2)
    assert moved.run().rows == 2
    assert moved.consumer() == before
    moved.assert_whole()


def test_a_new_folder_with_the_consumer_of_another_is_refused(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run(client_id="mine")
    other = beside(world, tmp_path / "other")
    with pytest.raises(ExportMismatch, match="'mine' has saved 5"):
        other.run(client_id="mine")
    command = [sys.executable, "-m", "stream_node", "export", "adopt", str(other.folder), "--node", world.node.address]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert msgspec.json.decode(done.stdout, type=promised.Adopted).client == other.consumer()
    assert other.run().rows == 10
    assert world.position(0, "mine") == 5


def test_a_folder_that_was_put_back_goes_on_after_an_adoption(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    shutil.copytree(world.folder, tmp_path / "kept", symlinks=True)
    world.push(10)
    world.run()
    shutil.rmtree(world.folder)
    (tmp_path / "kept").rename(world.folder)
    with pytest.raises(ExportMismatch, match="or the folder was put back to an earlier state"):
        world.run()
    with pytest.raises(ExportMismatch, match="another table saves under the same name"):
        adopt(world, world.consumer())
    assert adopt(world, "own") == world.consumer() == "own"
    assert world.run().rows == 10
    world.assert_whole()


def test_an_adoption_does_not_hide_a_node_that_was_put_back(world: World) -> None:
    """Before, the new consumer began at the table's end, and the next run took the other messages behind it."""
    world.push(10)
    world.run()
    before = world.consumer()
    # The node forgets what the export saved, as a backup that was put back would.
    with world.client() as client:
        set_position(client, before, world.stream, 0, 2)
    world.push(10)
    with pytest.raises(DataLost, match=r"keeps 2 as the position of .*`stream-node index set` it to 5"):
        adopt(world)
    assert world.consumer() == before
    with world.client() as client:
        set_position(client, before, world.stream, 0, 5)
    assert adopt(world) != before
    assert world.run().rows == 10
    world.assert_whole()


def test_a_run_whose_end_was_not_saved_does_not_hinder_an_adoption(world: World) -> None:
    world.push(10)
    assert export_child(world, "run", "published").returncode == -signal.SIGKILL
    adopt(world)
    world.push(10)
    assert world.run().rows == 10
    world.assert_whole()
