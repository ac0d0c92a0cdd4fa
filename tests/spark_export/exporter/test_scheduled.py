"""Goal: a scheduler's task exports by one call, hears by type and exit code what went wrong, and can be stopped.

Method: the call inside the test, its tasks held by a door before the node; and the examples inside the real Airflow and
Dagster, whose programs the CI installs in environments of their own (AIRFLOW_PYTHON, DAGSTER_PYTHON).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.node_side import Selection
from spark_export.exporter.scheduled import FAILED, STOPPED, TRY_AGAIN, exit_code, run_export
from spark_export.tables.errors import (
    ExportDiskFull,
    ExportError,
    ExportNodeFailed,
    ExportStopped,
    PositionsMoved,
    TableRefused,
    full_disk_told,
)
from stream_node.node.process import NodeProcess
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import HELD_BYTES, files_at_work
from tests.spark_export.exporter.export_world import World

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE_S = 200.0
ROWS, SIZE = 8_000, 2_000
IN_SCHEDULER = "import runpy, sys; sys.path += sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"


class Terminated(BaseException):
    """What a scheduler's own handler of SIGTERM raises."""


def test_an_export_is_one_call(world: World) -> None:
    world.push(500)
    assert (run_export(world.settings).rows, run_export(world.settings).run_id) == (500, None)
    world.assert_whole()


def full_at_commit(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_went_wrong_is_told_by_type_and_by_exit_code(world: World, tmp_path: Path) -> None:
    """Goal: a scheduler tries again where that may help, and only there."""
    world.push(10)
    with pytest.raises(ExportNodeFailed) as unreachable:
        run_export(replace(world.settings, node="127.0.0.1:1"))
    world.run()
    with pytest.raises(TableRefused) as refused:
        run_export(replace(world.settings, format="delta"))
    with pytest.raises(ExportError, match="nowhere") as missing:
        run_export(replace(world.settings, selection=Selection(("nowhere",))))
    world.push(1)
    with pytest.raises(ExportDiskFull) as full, patch.object(type(world.log()), "_commit", full_at_commit):
        run_export(world.settings)
    assert [exit_code(each.value) for each in (unreachable, full)] == [TRY_AGAIN, TRY_AGAIN]
    assert [exit_code(each.value) for each in (missing, refused)] == [FAILED, FAILED]
    assert [exit_code(each) for each in (None, ExportStopped(""), PositionsMoved(""))] == [0, STOPPED, TRY_AGAIN]


@pytest.mark.parametrize(("path", "named"), [(None, "/lake"), ("/tmp/spark/part", "/tmp/spark/part")])
def test_the_disk_that_is_full_is_named(path: str | None, named: str) -> None:
    """Spark's temporary files can be on another disk than the table."""
    with pytest.raises(ExportDiskFull, match=f"no room in {named}: "), full_disk_told("/lake"):
        raise OSError(errno.ENOSPC, "No space left on device", path)


@contextmanager
def when_tasks_are_at_work(world: World, act: object) -> Iterator[None]:
    """Calls `act` in another thread as soon as tasks of the run have written rows."""

    def wait() -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not files_at_work(world) and time.monotonic() < deadline_s:
            threading.Event().wait(0.02)
        assert callable(act)
        act()

    waiting = threading.Thread(target=wait)
    waiting.start()
    yield
    waiting.join()


def assert_stopped_without_a_trace(world: World) -> None:
    assert world.log().list_files() == []
    assert list(world.folder.glob("staging/*")) == []
    assert world.run().rows == ROWS
    world.assert_whole()


def test_an_export_is_stopped_by_the_caller(world: World) -> None:
    world.push(ROWS, size=SIZE)
    stop = threading.Event()
    with (
        door(world.node.address, [HELD_BYTES] * 100, threading.Event()) as address,
        when_tasks_are_at_work(world, stop.set),
        pytest.raises(ExportStopped, match="was stopped; the next one takes its messages again"),
    ):
        run_export(replace(world.settings, node=address), stop=stop)
    assert_stopped_without_a_trace(world)


def test_sigterm_stops_an_export_and_reaches_the_scheduler(world: World) -> None:
    """Goal: the run is given up in good order before the scheduler's own handler raises."""
    world.push(ROWS, size=SIZE)

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with (
            door(world.node.address, [HELD_BYTES] * 100, threading.Event()) as address,
            when_tasks_are_at_work(world, lambda: os.kill(os.getpid(), signal.SIGTERM)),
            pytest.raises(Terminated),
        ):
            run_export(replace(world.settings, node=address))
        assert signal.getsignal(signal.SIGTERM) is terminate
    finally:
        signal.signal(signal.SIGTERM, before)
    assert_stopped_without_a_trace(world)


@pytest.mark.parametrize("name", ["airflow", "dagster"])
def test_the_example_exports_inside_the_scheduler(tmp_path: Path, name: str) -> None:
    """Goal: the task of the example, executed by the real library, with what the library brings along."""
    python = os.environ.get(f"{name.upper()}_PYTHON")
    if not python:
        pytest.skip(f"{name.upper()}_PYTHON does not name a Python with {name}")
    # The scheduler's own packages come first, as where this project is installed beside it.
    paths = [str(REPOSITORY), sysconfig.get_path("purelib"), *filter(None, sys.path[1:2])]
    environment = {each: value for each, value in os.environ.items() if each != "PYTHONPATH"}
    environment |= {"AIRFLOW_HOME": str(tmp_path / "airflow"), "HOME": str(tmp_path)}
    with NodeProcess(tmp_path / "data") as node:
        world = World(tmp_path / "lake", node, "orders")
        world.push(100)
        done = subprocess.run(
            [python, "-c", IN_SCHEDULER, str(REPOSITORY / f"examples/{name}_export.py"), *paths],
            cwd=tmp_path,
            env={**environment, "STREAM_NODE_ADDRESS": node.address},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "{'run': 1, 'rows': 100, 'lost': 0}"
        world.assert_whole()
