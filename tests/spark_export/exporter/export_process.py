"""The export's command in a child process, waited for with a deadline: what tests that stop or kill it share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from stream_storage.failpoint import ENVIRONMENT_VARIABLE
from tests.spark_export.exporter.export_world import World

HELD_BYTES = 6_000_000
"""What a door lets through to a task before it holds it: more than a page, less than all that the task is to read."""


def command(world: World, verb: str, *more: str, node: str | None = None) -> list[str]:
    """The command line. node: the address that it is given, if not that of the world's node."""
    given = [sys.executable, "-W", "error", "-m", "stream_node", "export", verb, str(world.folder), "--json", *more]
    if verb in ("run", "daemon"):
        given += ["--node", node or world.node.address]
        given += [] if "--pattern" in more or "--stream" in more else ["--stream", world.stream]
        given += ["--format", world.format] if world.settings.format else []
    if verb == "daemon" and not {"--master", "--remote"}.intersection(more):
        # Without it, a daemon works on Spark where Spark is installed.
        given += ["--master", "inline"]
    return given


def export_child(world: World, verb: str, *more: str, site: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a child process, to its end. site: where it is killed."""
    return subprocess.run(
        command(world, verb, *more),
        env={**os.environ, ENVIRONMENT_VARIABLE: site or ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@contextmanager
def exporting(
    world: World, verb: str, node: str, *more: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The command, running. node: the address that it is given. environment: beside this process's own."""
    with subprocess.Popen(
        command(world, verb, *more, node=node),
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


def files_at_work(world: World) -> int:
    """How many files the tasks of a run that is under way have opened, which are in no table yet."""
    return len(list(world.folder.glob("staging/*/stream=*/**/*.parquet")))
