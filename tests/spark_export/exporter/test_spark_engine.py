"""Goal: on Spark, what fails and is tried again doubles nothing. Method: an embedded Spark whose workers are killed."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import DataLost, StreamsLeftOut, TaskFailed
from spark_export.exporter.runs.run import Progress
from spark_export.exporter.runs.spark_engine import SparkEngine, task_error
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_world import World

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(spark: Any) -> SparkEngine:
    return SparkEngine("", None, {}, session=spark)


def python_workers() -> set[int]:
    """Spark's Python workers below this process: the children of its daemons, whatever they run."""
    parents: dict[int, int] = {}
    daemons = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(re.findall(r"(\w+):\s+(\S+)", status.read_text()))
            command = status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        pid = int(fields["Pid"])
        parents[pid] = int(fields["PPid"])
        if b"pyspark.daemon" in command:
            daemons.add(pid)

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid for pid in daemons if is_ours(pid) and parents[pid] in daemons}


def test_runs_on_spark_take_what_is_new(world: World, engine: SparkEngine) -> None:
    world.push(3_000, partitions=3)
    assert world.run(engine=engine).rows == 3_000
    world.push(30)
    assert world.run(engine=engine).rows == 30
    assert world.run(engine=engine).run_id is None
    world.assert_whole()


def test_workers_that_are_killed_double_nothing(world: World, engine: SparkEngine) -> None:
    """Killed once, while the node's answers are held and rows are in files; Spark starts their tasks again."""
    killed: set[int] = set()
    world.push(60_000, partitions=1, size=1_000)
    opened = threading.Event()

    def kill(progress: Progress) -> None:
        if progress.rows and not killed:
            killed.update(python_workers())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            opened.set()

    limits = [20_000_000] * 20
    with door(world.node.address, limits, opened) as address:
        assert world.run(engine=engine, on_progress=kill, node=address).rows == 60_000
    assert killed
    world.assert_whole()


def test_what_fails_in_a_worker_is_told_in_one_line(world: World, engine: SparkEngine) -> None:
    """Method: the stream is cut behind the plan's back, while the node's answers are held in their middle."""
    world.push(60_000, partitions=1, size=1_000)
    opened = threading.Event()

    def truncate(progress: Progress) -> None:
        if not opened.is_set():
            with world.client() as client:
                client.create(world.stream).truncate(59_999)
            opened.set()

    # The first connections are the driver's; any of a task stops after a few of its pages.
    limits = [10_000_000] * 20
    with (
        door(world.node.address, limits, opened) as address,
        pytest.raises(StreamsLeftOut, match=r"/0: data is lost: .* deleted by retention or truncation"),
    ):
        world.run(engine=engine, on_progress=truncate, node=address)
    assert not list((world.folder / "messages").resolve().iterdir())
    assert world.run(engine=engine).rows == 1
    assert world.verify().problems == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x\n  spark_export.errors.DataLoss: gone\n at java", DataLost("gone")),
        ("x\nspark_export.exporter.errors.RangeIncomplete: too few\n", TaskFailed("too few")),
        (
            "x\nTraceback\n  File\nOSError: [Errno 28] No space left on device\n\n\tat org.apache",
            TaskFailed("Spark could not finish the run: OSError: [Errno 28] No space left on device"),
        ),
        ("Job aborted\n due to", TaskFailed("Spark could not finish the run: Job aborted due to")),
    ],
)
def test_errors_are_found_in_what_spark_says(text: str, error: Exception) -> None:
    found = task_error(text)
    assert (type(found), str(found)) == (type(error), str(error))
