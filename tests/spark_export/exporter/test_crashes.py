"""Goal: a crash at any point is harmless: no row lost, none doubled, nothing left behind.

Method: the command in a child process that is killed with SIGKILL at a named site, in each format, then a run as usual.
The tables are read by their own libraries in between, and compared with a pull of everything from the node.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from stream_storage.failpoint import EXPORT_SITES
from tests.cli.promised import promised
from tests.spark_export.exporter.export_process import command, export_child
from tests.spark_export.exporter.export_world import World

REWRITE_SITES = {"rewrite_written", "rewritten"}
BEFORE_COMMIT = {"planned", "writing", "tasks_done", "before_commit"}


@pytest.mark.parametrize("site", sorted(EXPORT_SITES - REWRITE_SITES))
def test_killed_at_a_site_and_run_again(each_format: World, site: str) -> None:
    world = each_format
    world.push(100)
    world.run()
    before = world.rows()
    # Enough for tasks to be seen writing before they are done.
    world.push(20_000 if site == "writing" else 100, size=1_000 if site == "writing" else 20)
    killed = export_child(world, "run", site=site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.rows() == (before if site in BEFORE_COMMIT else world.stored())
    world.push(7)
    assert world.run().rows == (7 if site not in BEFORE_COMMIT else len(world.stored()) - len(before))
    assert [world.position(partition) for partition in (0, 1)] == [
        len(world.stored()) // 2 + 1,
        len(world.stored()) // 2,
    ]
    world.assert_whole()


@pytest.mark.parametrize("site", sorted(REWRITE_SITES))
@pytest.mark.parametrize("verb", ["compact", "forget"])
def test_a_rewrite_killed_at_a_site(each_format: World, verb: str, site: str) -> None:
    """Goal: a compaction changes no row, and forgetting can be repeated."""
    world = each_format
    for key in (b"a", b"b", b"a"):
        world.push(30, key=key)
        world.run()
    before = world.rows()
    more = ["--stream", world.stream, "--key", "a"] if verb == "forget" else []
    killed = export_child(world, verb, *more, site=site)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert world.rows() == before or (verb, site) == ("forget", "rewritten")
    world.push(5, key=b"b")
    world.run()
    done = export_child(world, verb, *more)
    assert done.returncode == 0, done.stderr
    assert len(world.rows()) == (95 if verb == "compact" else 35)
    assert world.verify().problems == ()
    assert list(world.folder.glob("staging/*")) == []


def test_the_commands_tell_what_they_did(each_format: World) -> None:
    world = each_format
    world.push(10)
    done = export_child(world, "run")
    assert (done.returncode, done.stderr) == (0, "")
    report = msgspec.json.decode(done.stdout, type=promised.Exported)
    assert (report.run, report.rows, report.files, report.partitions) == (1, 10, 1, 2)
    (line,) = export_child(world, "history").stdout.splitlines()
    row = msgspec.json.decode(line, type=promised.RunRow)
    assert (row.run, row.state, row.rows, row.error) == (1, "done", 10, None)
    verdict = msgspec.json.decode(export_child(world, "verify").stdout, type=promised.ExportVerified)
    assert (verdict.ok, verdict.rows, verdict.compared) == (True, 10, None)
    compared = export_child(world, "verify", "--contents", "--node", world.node.address)
    assert msgspec.json.decode(compared.stdout, type=promised.ExportVerified).compared == 10
    kept = msgspec.json.decode(export_child(world, "compact").stdout, type=promised.TableKept)
    assert (kept.merged, kept.files_before) == (0, 1)
    (file,) = export_child(world, "files").stdout.splitlines()
    assert msgspec.json.decode(file, type=promised.FileRow).rows == 10
    forgotten = msgspec.json.decode(
        export_child(world, "forget", "--stream", world.stream).stdout, type=promised.Forgotten
    )
    assert (forgotten.rows, forgotten.key_sha256) == (10, None)
    assert world.rows() == []


def test_what_a_killed_run_left_is_removed(world: World) -> None:
    """Goal: the next run clears the staging folder, but not that of an exporter that lives."""
    world.push(10)
    world.run()
    world.push(10)
    export_child(world, "run", site="before_commit")
    assert list(world.folder.glob("staging/*"))
    state = world.log().load()
    log = world.settings.open_log()
    alive = world.settings.plan_files(log, state)
    assert world.run().rows == 10
    assert [str(path) for path in world.folder.glob("staging/*")] == [alive.root]
    log.abandon(alive)
    world.assert_whole()


def test_a_folder_that_was_moved_is_as_good(world: World, tmp_path: Path) -> None:
    world.push(10)
    world.run()
    moved = tmp_path / "moved"
    shutil.move(world.folder, moved)
    world.folder = moved
    world.settings = replace(world.settings, folder=moved)
    world.push(5)
    assert world.run().rows == 5
    world.assert_whole()


@pytest.mark.parametrize("kills", [3, pytest.param(128, marks=pytest.mark.soak)])
def test_kills_at_random_while_a_producer_pushes_lose_one_step_each(each_format: World, kills: int) -> None:
    """Goal: an export that is killed again and again gets on, however much the backlog grows meanwhile.

    Method: the command with SIGKILL at a random moment after a step of its own; a producer that pushes all the time.
    """
    world, seeded, done = each_format, random.Random(7), threading.Event()
    world.push(kills * 2_000)
    world.run(rows_max=100, seconds_max=0)

    def produce() -> None:
        while not done.wait(0.2):
            world.push(50)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(kills):
            before = world.log().load().run
            arguments = command(world, "run", "--rows-max", "200")
            with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
                while world.log().load().run == before:
                    assert child.poll() is None, child.communicate()[1]
                    threading.Event().wait(0.02)
                done.wait(seeded.random() / 5)
                child.send_signal(signal.SIGKILL)
    finally:
        done.set()
        producer.join()
    world.run()
    world.assert_whole()
