"""A user's own tests: how many of them pass in a second with the fixtures of the plugin, and how soon a node runs.

Each sample is a fresh process, with the byte code of an earlier one. Tests are timed by pytest, from the start of its
session to the end: with the import of the node, and without the start of the interpreter. Starts of
`stream_node.testing.node` are timed from the call until a client can connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.measure import sample_fields
from bench.plan import Plan
from bench.report import OURS, Sample
from stream_node.bench.run import Timed

TESTED, STARTED = "tests: of a user's file, each with a node", "tests: starts of node()"
IN_MEMORY, REAL = "a node in memory", "a real node"
FIRST = "the first node of a process"
TESTS = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_orders(stream_client, number):
    orders = stream_client.create("orders")
    assert orders.push(b"%d" % number) == 0
    assert [message.data for message in orders.pull(0)] == [b"%d" % number]
"""
STARTS = """
import json, time
from stream_node.testing import node
times_us = []
for _ in range({count}):
    began_ns = time.perf_counter_ns()
    with node():
        times_us.append((time.perf_counter_ns() - began_ns) / 1e3)
print(json.dumps(times_us))
"""
ENDED = re.compile(r"^(\d+) passed in ([\d.]+)s", re.MULTILINE)


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work."""
    # Leaves byte code behind, as a user's first run does.
    _tested(1, "real")
    for round_ in range(plan.rounds):
        for system, kind, count in ((IN_MEMORY, "memory", plan.user_tests), (REAL, "real", plan.user_tests // 10)):
            passed, seconds = _tested(count, kind)
            yield Sample(work=TESTED, system=system, durability="", round=round_, messages=passed, seconds=seconds)
        times_us = msgspec.json.decode(_run("-c", STARTS.format(count=plan.user_tests // 10)), type=list[float])
        for system, starts_us in ((FIRST, times_us[:1]), (OURS, times_us[1:])):
            yield Sample(
                work=STARTED,
                system=system,
                round=round_,
                **sample_fields(Timed(len(starts_us), sum(starts_us) / 1e6, starts_us)),
            )


def _tested(count: int, kind: str) -> tuple[int, float]:
    """Runs `count` tests. Returns how many have passed, and the seconds that pytest says it took."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        path = Path(folder, "test_orders.py")
        path.write_text(TESTS.format(count=count))
        # Only what a user has who installed pytest and this project: no other plugins, and no settings of this project.
        options = ("-q", "-p", "stream_node.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull)
        told = _run("-m", "pytest", *options, "--rootdir", folder, "--stream-node", kind, str(path))
    ended = ENDED.search(told)
    if ended is None or int(ended[1]) != count:
        raise RuntimeError(f"not all of {count} tests have passed: {told}")
    return int(ended[1]), float(ended[2])


def _run(*arguments: str) -> str:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.getcwd()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
