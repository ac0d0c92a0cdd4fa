"""Goal: any stream's name can be exported or is refused with a reason, and a folder whose parts do not belong together
is never written to.

Method: names that are hard for paths, read by each format's own library; links and logs that are lost.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa
import pyarrow.dataset as dataset

from spark_export.exporter.history import history_of
from spark_export.exporter.job import ExportSettings
from spark_export.exporter.node_side import Selection
from spark_export.exporter.run import Exporter
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import ExportError, StreamsLeftOut, TableDamaged, TableRefused
from spark_export.tables.model import NO_NAME, Commit, hive_folder
from spark_export.tables.parquet_folder import ParquetFolderLog
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_process import export_child
from tests.spark_export.exporter.export_world import COLUMNS, World, rows_of

NAMES = [
    "ü/日本=x%41",
    "a b",
    "7",
    ",",
    " ",
    "a\nb\t",
    "q'\"`",
    ".",
    "..",
    "%2F",
    NO_NAME,
    "x" * 248,
]


def test_a_damaged_id_of_a_table_is_told(tmp_path: Path) -> None:
    """Goal: the user reads which file is damaged. Method: files that are no JSON, or not that of a table."""
    log = ParquetFolderLog(parse_place(tmp_path), {})
    log.create(ROWS)
    for text in ("{", "{}", "[]", "null"):
        (tmp_path / "_export.json").write_text(text)
        with pytest.raises(TableDamaged, match=r"_export\.json is damaged"):
            log.table_id()


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_hard_names_are_read_as_they_are(tmp_path: Path, table_format: str) -> None:
    """Goal: each name reads back as it is; also, but for folders, the name that stands for no value in Hive (what
    folders do with it: tests/spark_export/test_export_decoded.py)."""
    names = [name for name in NAMES if table_format != "parquet" or name != NO_NAME]
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "", table_format)
        for _ in range(2):
            for name in names:
                world.push(1, partitions=1, stream=name)
            assert world.run(selection=Selection()).rows == len(names)
        if table_format == "parquet":
            fields = pa.schema([("run", pa.int32()), ("stream", pa.string()), ("date", pa.date32())])
            hive = dataset.partitioning(fields, flavor="hive")
            rows = rows_of(dataset.dataset((world.folder / "messages").resolve(), partitioning=hive).to_table(COLUMNS))
        else:
            rows = world.rows()
        assert rows == world.stored(names)
        verdict = world.verify()
        assert (verdict.problems, verdict.rows, verdict.compared) == ((), 2 * len(names), 2 * len(names))
        assert node.stop() == 0


def test_a_name_too_long_for_a_folder_is_left_out_before_anything_is_written(world: World) -> None:
    name = "é" * 130
    world.push(1, partitions=1, stream=name)
    with pytest.raises(StreamsLeftOut, match="267 bytes, and file systems take 255: leave it out"):
        world.run(selection=Selection((name,)))
    assert len(hive_folder({"stream": name}).encode()) == 268
    assert list((world.folder / "staging").iterdir()) == []
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.folder = world.folder.with_name("delta")
    assert world.run(folder=world.folder, selection=Selection((name,)), format="delta").rows == 1


def test_the_millionth_run_follows_the_one_before_it(world: World) -> None:
    """Goal: a daemon that exports each second goes on after two weeks: the run with the largest number is the latest.

    Method: the first run gets the number 999,999; then each message is in the table once, also after a compaction.
    """
    world.push(4)
    world.run()
    table = (world.folder / "messages").resolve()
    first = table / "run=000001"
    said = json.loads((first / "_run.json").read_bytes())
    (first / "_run.json").write_text(json.dumps(said | {"run": 999_999}))
    first.rename(table / "run=999999")
    for number in (1_000_000, 1_000_001):
        world.push(4)
        assert world.run().run_id == number
        assert world.rows() == world.stored()
    assert [commit.run for commit in world.log().commits() if isinstance(commit, Commit)] == [
        1_000_001,
        1_000_000,
        999_999,
    ]
    world.compact()
    world.push(4)
    assert world.run().run_id == 1_000_002
    assert world.rows() == world.stored()


def test_a_lost_link_is_told_and_never_made_an_empty_table(world: World) -> None:
    world.push(3)
    world.run()
    generation = os.readlink(world.folder / "messages")
    harms: dict[str, Callable[[], object]] = {
        "is missing": lambda: None,
        "is not a link": lambda: shutil.copytree(world.folder / generation, world.folder / "messages"),
        "which is no generation": lambda: (world.folder / "messages").symlink_to(world.folder.parent),
    }
    for said, harm in harms.items():
        (world.folder / "messages").unlink()
        harm()
        for verb in ("run", "verify", "compact"):
            done = export_child(world, verb)
            assert (done.returncode, "Traceback" in done.stderr) == (1, False)
            assert said in done.stderr
        if (world.folder / "messages").is_dir() and not (world.folder / "messages").is_symlink():
            shutil.rmtree(world.folder / "messages")
            (world.folder / "messages").symlink_to(generation)
            continue
        (world.folder / "messages").unlink(missing_ok=True)
        (world.folder / "messages").symlink_to(generation)
    world.push(1)
    assert world.run().rows == 1
    world.assert_whole()


def test_old_files_are_not_removed_while_the_link_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: forgetting, which keeps nothing for readers, does not take the generation of a compaction that goes on.

    Method: another process expires everything old between the two renames of a compaction.
    """
    for _ in range(2):
        world.push(5, partitions=1)
        world.run()
    turn, expiring = ParquetFolderLog._turn, list[threading.Thread]()

    def turned(log: ParquetFolderLog, number: int) -> None:
        other = threading.Thread(target=world.log().expire, args=(0.0,))
        other.start()
        expiring.append(other)
        # It either removes the new generation now, or waits for the lock.
        other.join(1.0)
        turn(log, number)

    monkeypatch.setattr(ParquetFolderLog, "_turn", turned)
    # The other process has swept before the compaction took the lock.
    monkeypatch.setattr(ParquetFolderLog, "_sweep", lambda log: 0)
    assert world.compact(keep_s=3600.0).merged == 2
    expiring[0].join()
    world.assert_whole()


def test_a_table_that_was_put_back_goes_on_from_its_own_positions(each_format: World, tmp_path: Path) -> None:
    """Goal: the positions are those of the rows, in whatever state the folder is."""
    world = each_format
    world.push(10)
    world.run()
    world.settings.open_log()
    shutil.copytree(world.folder, tmp_path / "kept", symlinks=True)
    world.push(10)
    world.run()
    shutil.rmtree(world.folder)
    (tmp_path / "kept").rename(world.folder)
    assert world.run().rows == 10
    world.assert_whole()


def test_what_a_file_manager_leaves_ends_no_daemon(tmp_path: Path) -> None:
    """Goal: a file of others in `staging` harms nothing, and a copy of a run, whose rows readers find twice, is refused
    in words. Method: the log without a node."""
    log = ParquetFolderLog(parse_place(tmp_path / "lake"), {})
    log.create(ROWS)
    (tmp_path / "lake" / "staging" / ".DS_Store").touch()
    log.create(ROWS)
    assert log.expire(0.0) == 0
    (tmp_path / "lake" / "messages" / "run=000001 (copy)").mkdir()
    with pytest.raises(TableRefused, match=r"run=000001 \(copy\) is no run of the table"):
        log.load()


def test_a_table_made_anew_is_not_taken_for_the_one_before_it(world: World) -> None:
    """Goal: a daemon skips no row after its folder was removed, and another exporter has made a table of as many
    versions there. Method: an exporter of Delta that stays open meanwhile."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.settings = replace(world.settings, format="delta")
    other = f"{world.stream}-other"
    for name in (world.stream, other):
        world.push(10, stream=name)

    def main(exporter: Exporter) -> None:
        for _ in range(2):
            exporter.run()
        shutil.rmtree(world.folder)
        world.run(selection=Selection((other,)))
        assert exporter.run().rows == 10

    world.with_exporter(main)
    world.assert_whole((world.stream, other))


def test_a_copy_of_an_export_goes_on_by_itself(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    shutil.copytree(world.folder, tmp_path / "copy", symlinks=True)
    world.push(5)
    for folder in (world.folder, tmp_path / "copy"):
        world.folder, world.settings = folder, replace(world.settings, folder=folder)
        assert world.run().rows == 5
        world.assert_whole()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_log_that_is_gone_is_not_begun_anew_in_silence(world: World, table_format: str) -> None:
    """Goal: the rows that are still on disk are not exported again beside a new log, without a word.

    Method: without the log there is no table, so the next run makes one of everything; the files of the lost one are
    in no table, and no reader sees them.
    """
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format])
    world.settings = replace(world.settings, format=table_format)
    world.push(10)
    world.run()
    gone = {"delta": "messages/_delta_log", "iceberg": "catalog.sqlite"}[table_format]
    (world.folder / gone).rename(world.folder.with_name("kept"))
    done = export_child(world, "verify")
    assert (done.returncode, "holds no export" in done.stderr) == (1, True)
    with pytest.raises(ExportError):
        world.log()


def test_a_folder_of_a_hard_name_is_the_one_that_is_named(each_format: World) -> None:
    """Goal: table, catalog and history are in that folder, and nothing is beside it: libraries take paths for URLs."""
    world = each_format
    parent = world.folder.with_name("parent")
    world.folder = parent / ("la?ke #1 %41 é" if world.format == "parquet" else "lake 1 é")
    world.settings = replace(world.settings, folder=world.folder)
    for number in (1, 2):
        world.push(10)
        assert world.run().run_id == number
    assert [each.name for each in parent.iterdir()] == [world.folder.name]
    assert [each.run for each in history_of(world.settings.place()).load_runs(5)] == [2, 1]
    assert world.compact().merged == 2
    world.assert_whole()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("name", ["la?ke", "lake#1", "lake%41"])
def test_a_folder_whose_name_a_library_takes_for_a_url_is_refused(tmp_path: Path, table_format: str, name: str) -> None:
    folder = tmp_path / name
    with pytest.raises(TableRefused, match="give the folder another name"):
        ExportSettings(folder, "127.0.0.1:1", format=table_format).open_log()
    assert list(tmp_path.iterdir()) == []
