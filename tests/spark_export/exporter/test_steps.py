"""Goal: an export works in steps that are published one by one, and a loss of one stream keeps no other from the table.

Method: real nodes and folders, tasks in threads, and the command in a child process where its words are the claim.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.dataset as dataset

from spark_export.errors import SourceUnreachable
from spark_export.exporter.errors import StreamsLeftOut
from spark_export.exporter.model import ExportTask, RangePart
from spark_export.exporter.node_side import Selection
from spark_export.exporter.runs import job
from spark_export.exporter.runs.run import Exporter, Progress
from spark_export.exporter.runs.step import ExportStep
from spark_export.exporter.runs.task import TaskSettings, run_task
from spark_export.source.options import read_options
from stream_node.node.process import NodeProcess
from tests.cli.promised import promised
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_world import World

STEP_ROWS = 300


def command(world: World, *more: str) -> list[str]:
    arguments = ["export", "run", str(world.folder), "--node", world.node.address, "--json", *more]
    return [sys.executable, "-W", "error", "-m", "stream_node", *arguments]


def export_child(world: World, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(world, *more), capture_output=True, text=True, timeout=60, check=False)


def test_what_is_new_is_published_in_steps_of_the_given_size(world: World) -> None:
    world.push(1_000)
    seen: list[tuple[ExportStep, int]] = []
    progress: list[Progress] = []

    async def main(exporter: Exporter) -> object:
        async def on_step(step: ExportStep) -> None:
            seen.append((step, len(world.rows())))

        return await exporter.run(on_step=on_step)

    outcome = world.with_exporter(main, rows_max=300)
    assert (outcome.rows, outcome.steps, outcome.rows_left, outcome.run_id) == (1_000, 4, 0, 4)
    assert [rows for _, rows in seen] == [300, 600, 900, 1_000], "a reader sees each step when it is told"
    assert sum(step.rows for step, _ in seen) == 1_000
    assert [len(step.places) for step, _ in seen] == [2] * 4, "no partition waits for another one"
    world.assert_whole()
    world.push(2_000)
    outcome = world.run(bytes_max=20 * 500, on_progress=progress.append)
    assert (outcome.rows, outcome.steps) == (2_000, 4)
    assert all(0 < each.step <= 4 and each.rows <= each.rows_planned == 2_000 for each in progress)
    world.assert_whole()


def test_an_export_ends_though_a_producer_does_not(world: World) -> None:
    """Method: after each step more is pushed than the step has taken."""
    world.push(500)

    async def main(exporter: Exporter) -> object:
        async def on_step(step: ExportStep) -> None:
            await asyncio.to_thread(world.push, 200)

        return await exporter.run(on_step=on_step)

    outcome = world.with_exporter(main, rows_max=100)
    assert (outcome.rows, outcome.rows_left) == (500, 0)
    assert world.run().rows == 200 * outcome.steps
    world.assert_whole()


def test_no_step_begins_after_the_time_and_the_rest_is_told(world: World) -> None:
    world.push(50)
    ended = export_child(world, "--stream", world.stream, "--seconds-max", "0")
    report = msgspec.json.decode(ended.stdout, type=promised.Exported)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (report.run, report.steps, report.rows_left, report.data_bytes_left) == (None, 0, 50, 1_000)
    assert world.run(seconds_max=600.0).rows_left == 0
    world.assert_whole()


def test_a_stream_with_a_loss_is_left_out_and_the_others_are_exported(world: World) -> None:
    """Goal: the command tells each stream in one line, in JSON and by its exit code, at each run until it is mended."""
    names = {kind: f"{world.stream}-{kind}" for kind in ("cut", "anew", "whole")}
    names["long"] = f"{world.stream}-" + "é" * 120 + "=" * 60
    pattern = ("--pattern", f"{world.stream}-.*")
    for kind in ("cut", "anew", "whole"):
        world.push(10, stream=names[kind], partitions=1)
    assert export_child(world, *pattern).returncode == 0
    with world.client() as client:
        client.create(names["anew"]).delete()
    for name in names.values():
        world.push(10, stream=name, partitions=1)
    with world.client() as client:
        client.create(names["cut"]).truncate(15)
    ended = export_child(world, *pattern)
    report = msgspec.json.decode(ended.stdout, type=promised.Exported)
    assert (ended.returncode, report.rows, report.steps) == (1, 10, 1)
    reasons = {each.stream: each.reason for each in report.left_out}
    assert reasons.keys() == {names["cut"], names["anew"], names["long"]}
    assert "retention deleted 5 messages" in reasons[names["cut"]]
    assert "made anew" in reasons[names["anew"]]
    assert "makes a folder's name of" in reasons[names["long"]]
    *logged, said = map(msgspec.json.decode, ended.stderr.splitlines())
    assert [line["event"] for line in logged] == ["stream left out"] * 3
    assert all(reason in said["error"] for reason in reasons.values())
    again = export_child(world, *pattern)
    assert (again.returncode, msgspec.json.decode(again.stdout, type=promised.Exported).run) == (1, None)
    accepted = world.run(accept_lost=True, selection=Selection((names["cut"], names["anew"], names["whole"])))
    assert (accepted.rows, accepted.lost) == (15, 5)
    verdict = world.verify()
    assert (verdict.problems, verdict.rows) == ((), 55)


def test_a_stream_that_is_cut_while_it_is_read_is_left_out_alone(world: World) -> None:
    """Method: the truncation comes between the plan and the reading, as a slow run would meet it."""
    other = f"{world.stream}-other"
    for name in (world.stream, other):
        world.push(100, partitions=2, stream=name)
    both = Selection((world.stream, other))

    async def main(exporter: Exporter) -> None:
        listed = exporter._node.list_ends

        def list_then_truncate(selection: Selection) -> object:
            ends = listed(selection)
            with world.client() as client:
                client.create(world.stream).truncate(20)
            return ends

        exporter._node.list_ends = list_then_truncate  # type: ignore[method-assign, assignment]
        with pytest.raises(StreamsLeftOut, match="indexes 0 to 19"):
            await exporter.run()

    world.with_exporter(main, selection=both)
    assert world.rows() == world.stored((other,))
    assert world.verify().problems == ()
    outcome = world.run(selection=both)
    assert outcome.rows == world.verify().rows - 100 == len(world.stored((world.stream,)))


def damage(data_dir: Path, stream: str, index: int) -> None:
    """Changes a byte of a stored message, as a disk does."""
    with sqlite3.connect(data_dir / "streams.sqlite") as database:
        (stream_id,) = database.execute("SELECT id FROM streams WHERE name = ?", (stream,)).fetchone()
        changed = database.execute(
            "UPDATE messages SET data = CAST('!' || substr(data, 2) AS BLOB) WHERE stream_id = ? AND idx = ?",
            (stream_id, index),
        )
        assert changed.rowcount == 1
    database.close()


@pytest.mark.parametrize("of_the_file", [False, True])
def test_a_stream_with_a_damaged_page_is_left_out_alone(tmp_path: Path, of_the_file: bool) -> None:
    """Goal: neither rows before nor rows after the damage are published without the damaged one, and other streams are.

    A stream of many messages, so that whole pages are read before the damage.
    """
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "damaged")
        world.push(20_000, partitions=1, size=500)
        world.push(100, partitions=1, stream="whole")
        node.stop()
        damage(tmp_path / "data", "damaged", 19_000)
        node.start()
        data_dir = tmp_path / "data" if of_the_file else None
        with pytest.raises(StreamsLeftOut, match=r"^damaged/0: message 19000 is not what was written") as told:
            world.run(selection=Selection(), data_dir=data_dir, verify_checksums=True)
        outcome = told.value.outcome
        assert (outcome.rows, [each.stream for each in outcome.left_out]) == (100, ["damaged"])
        assert world.rows() == world.stored(("whole",))
        assert world.verify().problems == ()
        node.kill()


def independent_rows(table: Path) -> int:
    """The number of rows by pyarrow alone; fails if a partition has a gap or repeats an index."""
    if not table.exists():
        return 0
    found = dataset.dataset(table.resolve(), format="parquet", partitioning="hive")
    if not found.files:
        return 0
    rows = found.to_table(["partition", "index"])
    for partition in set(rows.column("partition").to_pylist()):
        indexes = rows.filter(dataset.field("partition") == partition).column("index").to_pylist()
        assert sorted(indexes) == list(range(len(indexes))), f"partition {partition} has gaps or repeats"
    return int(rows.num_rows)


@pytest.mark.parametrize("kills", [4, pytest.param(51, marks=pytest.mark.soak)])
def test_kills_at_random_while_a_producer_pushes_lose_one_step_each(world: World, kills: int) -> None:
    """Goal: an export that is killed again and again gets on, however much the backlog grows meanwhile.

    Method: the command with SIGKILL after one to four of its steps, at a random moment; a producer that pushes all the
    time. Rows are counted by pyarrow alone, and at the end compared with a full pull.
    """
    seeded = random.Random(7)
    world.push(kills * 8 * STEP_ROWS)
    table = world.folder / "messages"
    done = threading.Event()

    def produce() -> None:
        while not done.wait(0.2):
            world.push(STEP_ROWS)

    producer = threading.Thread(target=produce)
    producer.start()
    rows = runs = 0
    try:
        for _ in range(kills):
            arguments = command(world, "--stream", world.stream, "--rows-max", str(STEP_ROWS))
            with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
                wait_for_runs(table, runs + seeded.randint(1, 4), child)
                done.wait(seeded.random() / 10)
                child.send_signal(signal.SIGKILL)
            before, rows = rows, independent_rows(table)
            assert rows > before, "the kill lost more than its step"
            runs = len(list(table.resolve().glob("run=*")))
    finally:
        done.set()
        producer.join()
    world.run()
    world.assert_whole()
    assert independent_rows(table) == len(world.stored())


def wait_for_runs(table: Path, wanted: int, child: subprocess.Popen[bytes]) -> None:
    """Until so many runs are in the table; fails if the command ends before."""
    while not table.exists() or len(list(table.resolve().glob("run=*"))) < wanted:
        assert child.poll() is None, child.communicate()[1]
        threading.Event().wait(0.01)


def test_without_an_option_tasks_run_inline_and_the_command_says_why(world: World) -> None:
    """Goal: no Java is started. Method: a Java that would leave a trace, in place of the machine's."""
    java = world.folder.parent / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").write_text(f"#!/bin/sh\ntouch {java}/started\nexit 1\n")
    (java / "bin" / "java").chmod(0o755)
    world.push(10)
    arguments = command(world, "--stream", world.stream)
    environment = {**os.environ, "JAVA_HOME": str(java)}
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, check=True)
    engine = msgspec.json.decode(ended.stdout, type=promised.Exported).engine
    assert re.fullmatch(r"inline, \d+ threads \(0\.0 MB are new, at most 64 GiB\)", engine)
    assert not (java / "started").exists()
    assert world.run(master="auto").engine == "", "nothing was new, so nothing ran"


def test_much_is_exported_inline_if_no_java_is_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the limit at ten bytes, and a Java that is not there."""
    monkeypatch.setattr(job, "SPARK_BYTES_MIN", 10)
    monkeypatch.setenv("JAVA_HOME", str(world.folder))
    world.push(10)
    outcome = world.run(master="auto")
    assert re.fullmatch(r"inline, .*GiB are new, more than .* GiB, but Java is not installed\)", outcome.engine)
    assert outcome.rows == 10


@pytest.mark.spark
def test_much_is_exported_by_spark(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "SPARK_BYTES_MIN", 10)
    world.push(100)
    outcome = world.run(master="auto", rows_max=60)
    assert (outcome.rows, outcome.steps) == (100, 2)
    assert outcome.engine.startswith("Spark, local[*,4] (")
    world.assert_whole()


@pytest.mark.parametrize("answers_others", [True, False])
def test_a_node_that_ends_each_read_is_told_from_a_node_that_has_gone(world: World, answers_others: bool) -> None:
    """Goal: a page at which the node ends the connection leaves out its stream; without the node, the run fails.

    Method: a door that ends the connections of the only task after some bytes, and then all others or none.
    """
    world.push(1_000, partitions=1, size=100)
    piece = RangePart(world.stream, 0, 0, 0, 0, 1_000)
    attempts = world.folder / "attempts"
    attempts.mkdir(parents=True)
    reads = read_options({"endpoint": world.node.address, "subscribe": world.stream}).fetch_retries + 1
    limits = [64] * (reads if answers_others else reads + 5)
    with door(world.node.address, limits) as address:
        settings = TaskSettings({"endpoint": address}, str(attempts))
        if answers_others:
            written = run_task(ExportTask(0, (piece,)), settings)
            assert (written.files, [each.stream for each in written.left_out]) == ([], [world.stream])
            assert "was read up to 0 of 1000 and no further" in written.left_out[0].reason
        else:
            with pytest.raises(SourceUnreachable, match="was read up to 0 of 1000"):
                run_task(ExportTask(0, (piece,)), settings)
