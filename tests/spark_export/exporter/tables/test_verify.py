"""Goal: `verify` finds whatever could go wrong with a table, and compaction changes no row.

Method: a sound export, damaged in one way at a time; the damage must be named. Readers during compactions.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.parquet as pq

from spark_export.exporter.tables.rewrite import KEEP_S
from tests.spark_export.exporter.export_world import World, rows_of


def files_of(world: World) -> list[Path]:
    return sorted((world.folder / "messages").resolve().rglob("*.parquet"))


@pytest.fixture
def exported(world: World) -> World:
    for _ in range(2):
        world.push(50)
        world.run()
    return world


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)


def copy_beside(file: Path) -> None:
    shutil.copy(file, file.with_name("copy.parquet"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is missing": (Path.unlink, "is missing"),
    "a file is cut": (cut, "were written"),
    "a bit is flipped": (flip, "SHA-256"),
    "a file is there twice": (copy_beside, "no run wrote it"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found(exported: World, what: str) -> None:
    assert exported.verify().sound
    damage, said = DAMAGE[what]
    damage(files_of(exported)[0])
    verdict = exported.verify()
    assert any(said in problem for problem in verdict.problems), verdict.problems


def test_rows_that_are_missing_or_doubled_are_found_by_their_indexes(exported: World) -> None:
    """Without checksums, and with the right number of rows in the file: only the indexes can tell."""
    file = files_of(exported)[0]
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.slice(0, 1).take([0] * table.num_rows), file)
    size = file.stat().st_size
    import sqlite3

    with sqlite3.connect(exported.folder / "ledger.sqlite") as ledger:
        ledger.execute("UPDATE files SET file_bytes = ? WHERE run_id = 1", (size,))
    ledger.close()
    problems = " ".join(exported.verify(checksums=False).problems)
    assert "indexes are missing, the first from" in problems
    assert "indexes are there twice, the first from" in problems


def test_a_compaction_makes_few_files_of_many_and_changes_no_row(exported: World) -> None:
    before = exported.rows()
    done = exported.compact()
    assert (done.files_before, done.files_after, done.merged) == (2, 1, 2)
    assert exported.rows() == before
    exported.assert_whole()
    assert exported.compact().generation is None
    exported.push(9)
    exported.run()
    exported.assert_whole()


def test_readers_are_not_disturbed_by_a_compaction(exported: World) -> None:
    """They resolve the link, as `docs/export.md` says; what they began in stays there."""
    wanted = exported.rows()
    seen: list[bool] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(rows_of(exported.folder / "messages") == wanted)

    began_in = (exported.folder / "messages").resolve()
    reader = threading.Thread(target=read)
    reader.start()
    exported.compact()
    done.set()
    reader.join()
    assert seen
    assert all(seen)
    assert rows_of(began_in) == wanted


def test_a_proof_beside_an_exporter_raises_no_false_alarm(exported: World) -> None:
    """Method: proofs one after the other while small runs are written and published."""
    done = threading.Event()
    verdicts = []

    def prove() -> None:
        while not done.is_set():
            verdicts.append(exported.verify())

    prover = threading.Thread(target=prove)
    prover.start()
    for _ in range(12):
        exported.push(10)
        exported.run()
    done.set()
    prover.join()
    assert len(verdicts) > 1
    assert [problem for each in verdicts for problem in each.problems] == []
    exported.assert_whole()


def test_replaced_generations_go_in_time_however_often_one_is_made(exported: World) -> None:
    """Goal: each is kept for readers that began in it, and none for ever. Method: compactions closer to each other than
    that time; the first generation is made to look as if it was replaced long ago."""
    for _ in range(2):
        exported.compact()
        exported.push(5)
        exported.run()
    generations = exported.folder / "generations"
    assert sorted(path.name for path in generations.iterdir()) == ["000001", "000002", "000003"]
    long_ago_s = time.time() - KEEP_S["parquet"] - 1
    os.utime(generations / "000001", (long_ago_s, long_ago_s))
    exported.compact()
    assert sorted(path.name for path in generations.iterdir()) == ["000002", "000003", "000004"]
    exported.assert_whole()


@pytest.mark.parametrize("how", ["deleted", "restored"])
def test_rows_that_left_the_log_of_a_delta_table_are_found(world: World, how: str) -> None:
    """Goal: data files that are whole and that no reader reads are a problem. Method: deltalake takes rows out of the
    table's log, by a delete of all rows and by going back to an earlier version; the files stay."""
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    world.settings = replace(world.settings, format="delta")
    for _ in range(2):
        world.push(50)
        world.run()
    assert world.verify().problems == ()
    table = deltalake.DeltaTable(str(world.folder / "messages"))
    if how == "deleted":
        table.delete()
    else:
        table.restore(table.version() - 1)
    assert any("does not list it" in problem for problem in world.verify().problems)
