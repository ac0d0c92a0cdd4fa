"""Goal: a crash at any point is harmless: no row lost, none doubled, nothing left behind.

Method: the command in a child process that is killed with SIGKILL at a named site, then a run as usual. Readers look at
the folder in between.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import ExportError
from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE, SITES
from tests.cli.promised import promised
from tests.spark_export.exporter.export_world import World

COMPACTION_SITES = {"compact_planned", "compact_written", "between_turn_and_ledger"}
BEFORE_PUBLICATION = {"planned", "writing", "tasks_done", "written"}
BEHIND_EVERYTHING = "saved"


def export_child(
    world: World, command: str, site: str | None = None, table_format: str = "parquet"
) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-W", "error", "-m", "stream_node", "export", command, str(world.folder), "--json"]
    if command == "run":
        arguments += ["--node", world.node.address, "--stream", world.stream, "--master", "inline"]
        arguments += ["--format", table_format]
    return subprocess.run(
        arguments,
        env={**os.environ, ENVIRONMENT_VARIABLE: site or ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("site", sorted(SITES - COMPACTION_SITES))
def test_killed_at_a_site_and_run_again(world: World, site: str) -> None:
    world.push(500)
    world.run()
    before = world.rows()
    # Enough for tasks to be seen writing before they are done.
    world.push(60_000 if site == "writing" else 500, size=1_000)
    killed = export_child(world, "run", site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if site in BEFORE_PUBLICATION:
        assert world.rows() == before, "a reader sees a part of a run that was not published"
    else:
        assert world.rows() == world.stored()
    world.push(7)
    outcome = world.run()
    assert len(outcome.recovered) == (0 if site == BEHIND_EVERYTHING else 1)
    world.assert_whole()


def test_the_command_tells_what_it_did(world: World) -> None:
    world.push(10)
    done = export_child(world, "run")
    assert (done.returncode, done.stderr) == (0, "")
    report = msgspec.json.decode(done.stdout, type=promised.Exported)
    assert (report.run, report.rows, report.files, report.partitions) == (1, 10, 1, 2)
    (line,) = export_child(world, "history").stdout.splitlines()
    row = msgspec.json.decode(line, type=promised.RunRow)
    assert (row.run, row.state, row.rows, row.error) == (1, "saved", 10, None)
    verdict = msgspec.json.decode(export_child(world, "verify").stdout, type=promised.ExportVerified)
    assert (verdict.ok, verdict.rows) == (True, 10)
    compacted = msgspec.json.decode(export_child(world, "compact").stdout, type=promised.Compacted)
    assert (compacted.generation, compacted.files_before) == (None, 1)


@pytest.mark.parametrize("site", sorted(COMPACTION_SITES))
def test_a_compaction_killed_at_a_site(world: World, site: str) -> None:
    for _ in range(3):
        world.push(100)
        world.run()
    before = world.rows()
    killed = export_child(world, "compact", site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.rows() == before
    assert world.verify().problems == ()
    world.push(5)
    world.run()
    world.assert_whole()
    world.compact()
    world.assert_whole()


def test_a_compaction_waits_for_a_run_that_was_left_behind(world: World) -> None:
    """It would forget where the run's files are."""
    for _ in range(2):
        world.push(50)
        world.run()
    world.push(50)
    export_child(world, "run", "written")
    with pytest.raises(ExportError, match="run 3 was left written by a crash"):
        world.compact()
    world.run()
    world.compact()
    world.assert_whole()


def test_staged_files_that_vanished_are_exported_again(world: World) -> None:
    """The ledger has the run as written, and staging has lost a file: the run is abandoned, and taken anew."""
    world.push(100)
    assert export_child(world, "run", "written").returncode == -signal.SIGKILL
    (staged,) = (world.folder / "staging").rglob("*.parquet")
    staged.unlink()
    outcome = world.run()
    assert (outcome.run_id, outcome.rows) == (2, 100)
    assert outcome.recovered == ("run 1, left written: abandon",)
    world.assert_whole()


def test_orphans_in_staging_are_reported_and_swept(world: World) -> None:
    world.push(10)
    world.run()
    orphan = world.folder / "staging" / "run-000009" / "attempts" / "x.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half a file")
    assert "orphan" in world.verify().problems[0]
    assert world.run().swept == 1
    world.assert_whole()


def test_a_folder_that_was_moved_is_as_good(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    moved = tmp_path / "moved"
    shutil.move(world.folder, moved)
    world.folder = moved
    assert world.verify().sound
    assert world.rows() == world.stored()
