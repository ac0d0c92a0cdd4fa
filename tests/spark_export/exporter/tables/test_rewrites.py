"""Goal: compaction changes no row of any format, is all or nothing at a kill, and leaves sorted files of a good size.

Method: tables of many small runs, read by each format's own library before, between and after; kills with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.parquet as pq

from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.table_readers import LIBRARIES, rows_in
from tests.spark_export.exporter.test_crashes import export_child

SITES = ("compact_planned", "compact_written", "between_turn_and_ledger")


@pytest.fixture(params=LIBRARIES)
def runs(request: pytest.FixtureRequest, world: World) -> World:
    """Three runs, so that each partition's indexes are spread over three files."""
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    world.settings = replace(world.settings, format=request.param)
    for _ in range(3):
        world.push(60, partitions=3)
        world.run()
    return world


def assert_whole(world: World) -> None:
    assert rows_in(world) == world.stored()
    assert world.verify().problems == ()


def test_files_become_one_that_is_sorted(runs: World) -> None:
    done = runs.compact()
    assert (done.generation, done.files_before, done.files_after, done.merged, done.rows) == (2, 3, 1, 3, 180)
    assert_whole(runs)
    (merged,) = (runs.folder / "messages").resolve().rglob("*rewritten-*.parquet")
    with pq.ParquetFile(merged) as file:
        places = file.read(["partition", "index"]).to_pylist()
    assert all((a["partition"], a["index"]) < (b["partition"], b["index"]) for a, b in pairwise(places))
    assert runs.compact().generation is None
    runs.push(9)
    assert runs.run().rows == 9
    assert runs.compact().generation == 3
    assert_whole(runs)


@pytest.mark.parametrize("site", SITES)
def test_a_compaction_killed_at_a_site_is_the_old_table_or_the_new(runs: World, site: str) -> None:
    before = rows_in(runs)
    killed = export_child(runs, "compact", site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rows_in(runs) == before
    assert runs.verify().problems == ()
    runs.push(5)
    assert runs.run().rows == 5
    assert_whole(runs)
    runs.compact()
    assert_whole(runs)
    assert list((runs.folder / "staging").rglob("*")) == []


def test_replaced_files_go_when_their_time_has_come(runs: World) -> None:
    """Method: a compaction that keeps them, then one for which their time is over."""
    kept = {path: path.resolve() for path in (runs.folder / "messages").resolve().rglob("*.parquet")}
    assert runs.compact().expired == 0
    assert all(path.exists() for path in kept)
    long_ago_s = time.time() - 10 * 86_400
    folders = [runs.folder / "generations" / "000001"] if runs.settings.format == "parquet" else list(kept)
    for path in folders:
        os.utime(path, (long_ago_s, long_ago_s))
    done = runs.compact(keep_s=0.0)
    assert done.expired >= 1
    assert not any(path.exists() for path in kept if "checkpoint" not in path.name)
    assert_whole(runs)
    runs.push(5)
    runs.run()
    assert_whole(runs)


def test_a_table_that_another_program_rewrote_is_left_alone(world: World) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.settings = replace(world.settings, format="delta")
    for _ in range(2):
        world.push(20)
        world.run()
    deltalake.DeltaTable(str(world.folder / "messages")).optimize.compact()
    done = export_child(world, "compact")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the table stays as it is, and `export run` goes on" in line
    assert rows_in(world) == world.stored()
