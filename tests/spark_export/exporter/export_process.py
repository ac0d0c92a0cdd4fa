"""The export's command in a child process, waited for with a deadline: what tests that stop or kill it share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from spark_export.exporter.runs.task import PROGRESS_SUFFIX
from tests.spark_export.exporter.export_world import World

HELD_BYTES = 6_000_000
"""What a door lets through to a task before it holds it: more than a page, less than all that the task is to read."""


@contextmanager
def exporting(
    world: World, command: str, node: str, *more: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command, running. node: the address that it is given. environment: beside this process's own."""
    arguments = ["export", command, str(world.folder), "--node", node, "--stream", world.stream, *more]
    with subprocess.Popen(
        [sys.executable, "-m", "stream_node", *arguments],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str], patience_s: float) -> None:
    """Until it holds; fails where the process ends before, or it takes longer."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


def tasks_at_work(world: World) -> int:
    """How many attempts of the run that is under way have rows in files."""
    return sum(path.stat().st_size > 0 for path in world.folder.glob(f"staging/run-*/attempts/*{PROGRESS_SUFFIX}"))
