"""Goal: SIGTERM and Ctrl-C end a run or a daemon at any stage, soon, with a code that says how, and lose nothing.

Method: the command in a child process, its tasks held in their middle by a door before the node; the steps that are not
given up half way, in this process, held at their beginning.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.model import RunState
from spark_export.exporter.runs.run import Exporter, ExportOutcome
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import HELD_BYTES, exporting, tasks_at_work, wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.test_true_tables import data_files, flip
from tests.spark_export.exporter.tables.test_verify import files_of
from tests.spark_export.exporter.test_crashes import export_child
from tests.spark_export.exporter.test_spark_process import jvm_below

PATIENCE_S = 200.0
ROWS, SIZE = 8_000, 2_000
SIGNALS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
ON_SPARK = [pytest.mark.spark, pytest.mark.soak]
WAYS = [
    ("inline", signal.SIGTERM),
    pytest.param("inline", signal.SIGINT, marks=pytest.mark.soak),
    pytest.param("local[2,4]", signal.SIGTERM, marks=ON_SPARK),
]


def assert_interrupted(world: World, err: str) -> None:
    """That the log and the history say it of the one run, and nothing of it is left."""
    assert "Traceback" not in err
    # A Spark that is stopped in the middle of a task may have a word of its own.
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [each["error"] for each in events if each.get("event") == "run abandoned"] == ["interrupted"]
    assert files_of(world) == []
    assert list(world.folder.glob("staging/*")) == []
    (row,) = map(json.loads, export_child(world, "history").stdout.splitlines())
    assert (row["state"], row["error"]) == ("abandoned", "interrupted")


@pytest.mark.parametrize(("master", "number"), WAYS)
@pytest.mark.parametrize("command", ["run", "daemon"])
def test_told_to_end_while_tasks_write(world: World, command: str, master: str, number: signal.Signals) -> None:
    world.push(ROWS, size=SIZE)
    with (
        door(world.node.address, [HELD_BYTES] * 100, threading.Event()) as address,
        exporting(world, command, address, "--json", "--master", master) as process,
    ):
        wait_until(lambda: tasks_at_work(world), process, PATIENCE_S)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (128 + number if command == "run" else 0, ""), err
    assert_interrupted(world, err)
    assert world.run().rows == ROWS
    world.assert_whole()


@pytest.mark.spark
@pytest.mark.soak
def test_a_spark_that_is_killed_while_tasks_write_is_told(world: World) -> None:
    """Goal: one line says so, without a word of Spark's own; nothing of the run is in the table."""
    world.push(ROWS, size=SIZE)
    with (
        door(world.node.address, [HELD_BYTES] * 100, threading.Event()) as address,
        exporting(world, "run", address, "--json", "--master", "local[2,4]") as process,
    ):
        wait_until(lambda: tasks_at_work(world), process, PATIENCE_S)
        jvm = jvm_below(process.pid)
        assert jvm is not None
        os.kill(jvm, signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
    abandoned, said = err.splitlines()
    assert (process.returncode, out, json.loads(abandoned)["event"]) == (1, "", "run abandoned")
    told = {"error": "Spark ended while the tasks of the run were at work; run again", "exit_code": 1}
    assert json.loads(said) == told
    assert files_of(world) == []
    assert world.run().rows == ROWS
    world.assert_whole()


@pytest.mark.parametrize("step", ["arrange", "publish"])
def test_told_to_end_in_a_step_that_is_not_given_up(world: World, step: str) -> None:
    """Goal: nobody works in the folder behind the exporter's back: who gives a run up waits for the step. A run that is
    being published is published, and told of."""
    world.push(100)
    begun, go_on = threading.Event(), threading.Event()

    async def main(exporter: Exporter) -> None:
        genuine = getattr(exporter._table, step)

        def held(*arguments: Any) -> Any:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return genuine(*arguments)

        setattr(exporter._table, step, held)
        run = asyncio.create_task(exporter.run())
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        run.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not run.done()
        go_on.set()
        (ended,) = await asyncio.gather(run, return_exceptions=True)
        (recorded,) = await exporter._ledger.load_runs()
        if step == "publish":
            assert isinstance(ended, ExportOutcome)
            assert (ended.rows, recorded.state) == (100, RunState.SAVED)
        else:
            assert isinstance(ended, asyncio.CancelledError)
            assert (recorded.state, recorded.error) == (RunState.ABANDONED, "interrupted")

    world.with_exporter(main)
    assert len(files_of(world)) == (step == "publish")
    world.run()
    world.assert_whole()


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("command", ["compact", "repair"])
def test_ctrl_c_while_a_table_is_rewritten(world: World, command: str, times: int) -> None:
    """Goal: the command ends with 130 and without a trace-back, and the table and the folder are as before.

    Method: a file of the table is replaced by a pipe, from which the compaction cannot read on; the repair's rows are
    held by a door before the node. Ctrl-C comes once or twice before they go on.
    """
    for _ in range(2):
        world.push(ROWS // 4, size=SIZE)
        world.run()
    first = data_files(world)[0]
    content, go_on = first.read_bytes(), threading.Event()
    if command == "compact":
        first.unlink()
        os.mkfifo(first)
    else:
        flip(first)
    with door(world.node.address, [HELD_BYTES // 8] * 100, go_on) as address:
        given = ["--node", address] if command == "repair" else []
        arguments = [sys.executable, "-m", "stream_node", "export", command, str(world.folder), *given]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_until(lambda: list(world.folder.glob("staging/rewrite-*/attempts")), process, PATIENCE_S)
                time.sleep(1)
                for _ in range(times):
                    process.send_signal(signal.SIGINT)
                    time.sleep(0.5)
                if command == "compact":
                    with suppress(BrokenPipeError):
                        first.write_bytes(content)
                go_on.set()
                out, err = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    first.unlink()
    first.write_bytes(content)
    assert world.compact(keep_s=0.0).files_after == 1
    world.assert_whole()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_daemon_told_to_end_between_runs(world: World, number: signal.Signals) -> None:
    world.push(5)
    with exporting(world, "daemon", world.node.address, "--json", "--master", "inline", "--client", "x") as process:
        wait_until(lambda: world.position(0, "x") + world.position(1, "x") == 5, process, PATIENCE_S)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads(out)["rows"] == 5
    assert json.loads(err.splitlines()[-1])["event"] == "daemon stopped"
    world.assert_whole()
