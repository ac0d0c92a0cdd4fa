"""Goal: an export that an earlier version wrote goes on with this one: no row is lost, doubled or exported again.

Method: folders that the last version with a ledger wrote (commit cf781f0d; two runs, a stream that was made anew, a
compaction of the plain Parquet files, and a third run), with the database of their node. A table of Iceberg has
absolute paths, so its files are written here, and its ledger by hand.
"""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.history import ExportHistory
from spark_export.exporter.migrate import _prove, migrate
from spark_export.exporter.node_side import Selection
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import ExportError, TableRefused
from spark_export.tables.log import open_table
from spark_export.tables.model import Commit, Incarnation, IndexRange, TablePosition
from stream_node.node.process import NodeProcess
from tests.cli.promised import promised
from tests.spark_export.exporter.export_process import export_child
from tests.spark_export.exporter.export_world import World, open_iceberg

VECTORS = Path(__file__).parents[2] / "vectors" / "export"
STREAMS = ("orders", "anew/é")


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(VECTORS / f"earlier_{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[World]:
    with NodeProcess(unpack("node", tmp_path / "data"), arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "orders")
        world.settings = replace(world.settings, selection=Selection(STREAMS))
        yield world
        assert node.stop() == 0


def take(world: World, table_format: str) -> World:
    """The export of an earlier version in this format."""
    pytest.importorskip({"parquet": "pyarrow", "delta": "deltalake"}[table_format])
    unpack(table_format, world.folder)
    world.settings = replace(world.settings, format=table_format)
    return world


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_an_earlier_export_goes_on(earlier: World, table_format: str) -> None:
    world = take(earlier, table_format)
    before = world.rows()
    assert len(before) == 43
    done = export_child(world, "migrate")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=promised.Migrated)
    assert (report.rows, report.partitions, report.runs, report.format) == (43, 3, 3, table_format)
    assert world.rows() == before
    assert not (world.folder / "ledger.sqlite").exists()
    assert world.run().run_id is None, "nothing is exported again"
    world.push(5)
    assert (world.run().rows, world.run().run_id) == (5, None)
    # The rows of the first incarnation of the stream that was made anew are on the node no more.
    old = [row for row in before if row[0] == STREAMS[1]]
    assert sorted(world.rows()) == sorted([*world.stored(("orders",)), *old])
    verdict = world.verify()
    assert (verdict.problems, verdict.removed, verdict.rows, verdict.compared) == ((), 0, 48, 44)
    assert world.compact().merged > 1
    assert world.verify().problems == ()
    again = export_child(world, "migrate")
    assert (again.returncode, "there is no export of an earlier version" in again.stderr) == (1, True)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_an_earlier_export_is_refused_by_name_until_it_is_migrated(earlier: World, table_format: str) -> None:
    """Goal: this version does not export everything once more into a table whose log has no positions yet."""
    world = take(earlier, table_format)
    before = world.rows()
    for verb in ("run", "verify"):
        done = export_child(world, verb)
        assert (done.returncode, "stream-node export migrate" in done.stderr) == (1, True), done.stderr
    assert world.rows() == before


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_rows_that_are_not_those_of_the_ledger_are_refused(earlier: World, table_format: str) -> None:
    """Goal: nothing is taken over from a folder whose parts do not belong together."""
    world = take(earlier, table_format)
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as ledger:
        ledger.execute("DELETE FROM ranges WHERE run_id = 3")
        ledger.commit()
    done = export_child(world, "migrate")
    assert (done.returncode, "has not the rows of its ledger" in done.stderr) == (1, True), done.stderr
    assert (world.folder / "ledger.sqlite").exists()


def test_a_ledger_is_put_away_wherever_it_was(tmp_path: Path) -> None:
    """Goal: an exporter of the earlier version that is started once more does not go on from it; none is at work."""
    lake = unpack("parquet", tmp_path / "lake")
    ledger = (lake / "ledger.sqlite").rename(tmp_path / "mine.sqlite")
    given: Any = (parse_place(lake), {}, None, ExportHistory(tmp_path / "history.sqlite"), ledger)
    for name in (tmp_path / "mine.sqlite.lock", lake / "exporter.lock"):
        with name.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(TableRefused, match=f"{name.name} is held: stop the exporter"):
                migrate(*given)
        assert ledger.exists()
    assert migrate(*given)["rows"] == 43
    assert (ledger.exists(), ledger.with_name("mine.sqlite.migrated").exists()) == (False, True)
    with pytest.raises(TableRefused, match="there is no export of an earlier version"):
        migrate(*given)


def test_an_interrupted_command_takes_nothing_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: Ctrl-C while the rows are compared. The command can be repeated."""
    lake = unpack("parquet", tmp_path / "lake")
    given: Any = (parse_place(lake), {}, None, ExportHistory(tmp_path / "history.sqlite"))

    def prove(*arguments: Any) -> None:
        _prove(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"{migrate.__module__}._prove", prove)
        with pytest.raises(KeyboardInterrupt):
            migrate(*given)
    assert (lake / "ledger.sqlite").exists()
    with pytest.raises(TableRefused, match="an earlier version wrote it"):
        open_table(parse_place(lake), "parquet", {}).load()
    assert migrate(*given)["rows"] == 43


def test_a_run_that_a_crash_left_counts_where_the_table_has_it(earlier: World) -> None:
    """Method: the ledger of a moment between the publication of the last run and its record."""
    world = take(earlier, "parquet")
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as ledger:
        ledger.execute("UPDATE runs SET state = 'written' WHERE id = 3")
        ledger.execute("UPDATE runs SET state = 'abandoned' WHERE id = 99")
        ledger.commit()
    assert export_child(world, "migrate").returncode == 0
    assert world.run().run_id is None
    shutil.rmtree(world.folder)
    take(earlier, "parquet")
    shutil.rmtree((world.folder / "messages").resolve() / "run=000003")
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as ledger:
        ledger.execute("UPDATE runs SET state = 'written' WHERE id = 3")
        ledger.commit()
    assert export_child(world, "migrate").returncode == 0
    assert world.run().rows == 6


def test_a_run_that_a_crash_left_counts_also_without_its_rows(earlier: World) -> None:
    """Goal: rows that somebody has deleted do not come back. Method: all rows of the last run, which is in the log."""
    world = take(earlier, "delta")
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as ledger:
        ledger.execute("UPDATE runs SET state = 'written' WHERE id = 3")
        ledger.commit()
        rows = ledger.execute(
            "SELECT stream, partition, start_index, end_index FROM ranges WHERE run_id = 3"
        ).fetchall()
    table = pytest.importorskip("deltalake").DeltaTable(str(world.folder / "messages"))
    for stream, partition, begin, end in rows:
        table.delete(f'stream = \'{stream}\' AND partition = {partition} AND "index" >= {begin} AND "index" < {end}')
    assert export_child(world, "migrate").returncode == 0
    assert world.run().run_id is None
    assert len(world.rows()) == 37


def test_a_run_whose_files_were_all_merged_is_taken_over(tmp_path: Path) -> None:
    """Method: the generation of a compaction, in which only the second run has a folder."""
    log = open_table(parse_place(tmp_path / "lake"), "parquet")
    log.create(ROWS)
    (tmp_path / "lake" / "generations" / "000001" / "run=000002").mkdir()
    of = Incarnation("orders", 0, 0, 5)
    log.adopt("abc", {1: ([IndexRange(of, 0, 5)], []), 2: ([IndexRange(of, 5, 9)], [])}, {of: TablePosition(9)})
    assert (log.load().run, log.load().positions) == (2, {of: TablePosition(9)})
    assert [each.run for each in log.commits() if isinstance(each, Commit)] == [2, 1]


LEDGER = """
CREATE TABLE export (id INTEGER, table_id TEXT, format TEXT, client_id TEXT, created_us INTEGER);
INSERT INTO export VALUES (1, 'abc', 'iceberg', 'export-lake-abc', 1);
CREATE TABLE runs (id INTEGER, state TEXT);
CREATE TABLE generations (id INTEGER, state TEXT);
INSERT INTO generations VALUES (1, 'published');
CREATE TABLE ranges (run_id, stream, partition, era, made_us, start_index, end_index, lost);
CREATE TABLE files (run_id, path, stream, era, date, rows, data_bytes, file_bytes, generation);
"""


def test_an_earlier_iceberg_table_goes_on(world: World) -> None:
    pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
    world.settings = replace(world.settings, format="iceberg")
    world.push(10, partitions=1)
    world.run()
    (of,) = world.log().load().positions
    table = open_iceberg(world.folder)
    with table.transaction() as change:
        change.remove_properties("stream-node.positions", "stream-node.run")
        with change.update_snapshot({"stream-node.run": "abc/2"}).fast_append():
            pass
    table.catalog.close()
    with closing(sqlite3.connect(world.folder / "ledger.sqlite")) as ledger:
        ledger.executescript(LEDGER)
        ledger.executemany("INSERT INTO runs VALUES (?, ?)", [(1, "saved"), (2, "written"), (3, "written")])
        rows = [(run, *of, begin, end, 0) for run, begin, end in ((1, 0, 6), (2, 6, 10), (3, 10, 20))]
        ledger.executemany("INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        ledger.commit()
    with pytest.raises(ExportError, match="stream-node export migrate"):
        world.run()
    done = export_child(world, "migrate")
    assert done.returncode == 0, done.stderr
    assert world.run().run_id is None
    world.push(3, partitions=1)
    assert world.run().rows == 3
    world.assert_whole()


def test_a_folder_without_an_earlier_export_is_told(world: World) -> None:
    done = export_child(world, "migrate")
    assert (done.returncode, "there is no export of an earlier version" in done.stderr) == (1, True)
    with pytest.raises(ExportError):
        world.log()
