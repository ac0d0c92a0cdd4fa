"""Goal: SIGTERM and Ctrl-C end a run or a daemon at any stage, soon, with a code that says how, and lose nothing.

Method: the command in a child process, its tasks held in their middle by a door before the node; the steps that are not
given up half way, in this process, held at their beginning.
"""

from __future__ import annotations

import gc
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.history import history_of
from spark_export.exporter.node_side import PROGRESS_INTERVAL_S
from spark_export.exporter.run import Exporter
from spark_export.tables.errors import ExportStopped
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import HELD_BYTES, export_child, exporting, files_at_work, wait_until
from tests.spark_export.exporter.export_world import World

PATIENCE_S = 200.0
ROWS, SIZE = 8_000, 2_000
SIGNALS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]


def assert_interrupted(world: World, err: str) -> None:
    """That the log and the history say it of the one run, and nothing of it is left."""
    assert "Traceback" not in err
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [each["error"] for each in events if each.get("event") == "run abandoned"] == ["interrupted"]
    assert world.log().list_files() == []
    assert list(world.folder.glob("staging/*")) == []
    (row,) = map(json.loads, export_child(world, "history").stdout.splitlines())
    assert (row["state"], row["error"]) == ("failed", "interrupted")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["run", "daemon"])
def test_told_to_end_while_tasks_write(world: World, command: str, number: signal.Signals) -> None:
    world.push(ROWS, size=SIZE)
    with (
        door(world.node.address, [HELD_BYTES] * 100, threading.Event()) as address,
        exporting(world, command, address) as process,
    ):
        wait_until(lambda: files_at_work(world), process, PATIENCE_S)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (128 + number if command == "run" else 0, ""), err
    assert_interrupted(world, err)
    assert world.run().rows == ROWS
    world.assert_whole()


@pytest.mark.parametrize("held_s", [0.0, 2.5 * PROGRESS_INTERVAL_S])
def test_an_interrupted_task_says_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch, held_s: float) -> None:
    """Claim: nothing is committed after a signal, and the tasks say nothing more. Method: a task is held until the run
    is told to end; it ends well before the run notices this, or early after it; the errors of threads that nobody
    takes."""
    world.push(100)
    begun, go_on, lost = threading.Event(), threading.Event(), list[object]()

    def held(site: str) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr("spark_export.exporter.node_side.failpoint", held)
    monkeypatch.setattr(threading, "excepthook", lost.append)

    def main(exporter: Exporter) -> None:
        with ThreadPoolExecutor(1) as thread:
            run = thread.submit(exporter.run)
            assert begun.wait(PATIENCE_S)
            exporter.stop.set()
            with pytest.raises(TimeoutError):
                # The run waits for its tasks.
                run.result(held_s)
            go_on.set()
            with pytest.raises(ExportStopped):
                run.result(PATIENCE_S)

    world.with_exporter(main)
    gc.collect()
    assert lost == []
    assert [each.state for each in history_of(world.settings.place()).load_runs(5)] == ["failed"]


@pytest.mark.parametrize("again", [False, True])
def test_told_to_end_during_the_commit(world: World, again: bool) -> None:
    """Goal: a run that is being committed is committed, and told of; nobody works behind the exporter's back.

    again: whether more steps would follow, which do not begin any more.
    """
    world.push(100)

    def main(exporter: Exporter) -> None:
        genuine = exporter._log.append

        def stopped(*arguments: Any) -> Any:
            exporter.stop.set()
            return genuine(*arguments)

        exporter._log.append = stopped  # type: ignore[method-assign, assignment]
        if again:
            with pytest.raises(ExportStopped):
                exporter.run()
        else:
            assert exporter.run().rows == 100

    world.with_exporter(main, rows_max=60 if again else None)
    assert [each.state for each in history_of(world.settings.place()).load_runs(5)] == ["done"]
    world.run()
    world.assert_whole()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_daemon_told_to_end_between_runs(world: World, number: signal.Signals) -> None:
    world.push(5)
    with exporting(world, "daemon", world.node.address, "--client", "x") as process:
        wait_until(lambda: world.position(0, "x") + world.position(1, "x") == 5, process, PATIENCE_S)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads(out)["rows"] == 5
    assert json.loads(err.splitlines()[-1])["event"] == "daemon stopped"
    world.assert_whole()
