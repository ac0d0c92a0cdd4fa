"""`python -m bench costs`: the selection of parts for what streams, pages, groups and an idle node cost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import run
from bench.goals import goals
from bench.plan import QUICK, Plan
from bench.profiles import shares
from bench.report import OURS, Report
from bench.run import COSTS, PARTS, SCALES, Options, run_bench
from bench.works import deleting, standing

WANTED = {
    "stream-node: pushes to 1,000 streams, 10,000 unconfirmed, to those of valkey": 1.3,
    "stream-node: pushes of 1,000 clients, one at a time each, to those of valkey": 1.0,
    "stream-node: pushes of 1,000 clients, one at a time each: p99, to that of valkey": -2.0,
    "stream-node: pushes to 10,000 streams, 10,000 unconfirmed, to those of valkey": 0.8,
    "stream-node: bytes written for a byte pushed to 10,000 streams": -10.0,
    "stream-node: pushes to 1,000 of 100,000 streams, to those to 1,000 of 1,000": 0.9,
    "stream-node: p50 of a delivery to 100 followers, to that of nats synced": -1.2,
    "stream-node: p50 of a delivery to 800 followers, to that of nats synced": -1.2,
    "stream-node: µs of the node's processor for a delivery to 100 followers": -35.0,
    "stream-node: µs of the node's processor for a delivery to 800 followers": -35.0,
    "stream-node: push of large messages, 1,000,000 bytes, to those of valkey": 1.0,
    "stream-node: push of large messages, 15,000,000 bytes, to those of valkey": 1.0,
    "stream-node: pull of large messages, 10,000 bytes, to those of valkey": 0.9,
    "stream-node: pull of large messages, 1,000,000 bytes, to those of valkey": 0.9,
    "seconds from a member's kill to the next message of its partitions": -1.0,
    "stream-node: pushes, window 100, to those of valkey": 1.5,
    "stream-node: p50 of a single push, to that of valkey": -1.3,
    "stream-node, blocking client: p50 of a single push, to that of valkey": -1.3,
    "stream-node: messages pulled by a consumer, to those of valkey": 3.0,
    "MiB a second of messages of 10,000 bytes": 300.0,
    "lines a second over HTTP, 1 connections": 300_000.0,
    "json a second over HTTP, 1 connections": 1_500.0,
    "json by 32 a second over HTTP, 32 connections": 4_000.0,
    "pages a second over HTTP, 1 connections": 500.0,
    "p99 beside a flood, with the default limits, to that alone, window 1": -2.0,
    "p99 beside a flood, with the default limits, to that alone, window 10": -2.0,
    "MB of an idle node with HTTP": -55.0,
    "KiB of a partition that was opened": -4.0,
    "KiB of a partition that only exists": -1.0,
    "seconds from the start of a node until it listens, with 100,000 partitions": -2.0,
    "seconds from the start of a node until it listens, empty": -0.35,
    "seconds from SIGTERM until a node has ended, with 100,000 partitions": -1.0,
    "seconds that a message outlives a retention by age at most, beside a publisher at full speed": -10.0,
    "MB of deleted messages given back to the file system a second": 200.0,
    "seconds of `stream-node --help`": -0.12,
    "seconds of `stream-node push of one line`": -0.25,
    "messages deleted a second by a truncation beside single pushes": 120_000.0,
    "messages deleted a second by a retention beside single pushes": 120_000.0,
    "messages deleted a second by a delete beside single pushes": 120_000.0,
    "ms, worst push beside a truncation of another stream": -50.0,
    "ms, worst push beside a retention of another stream": -50.0,
    "ms, worst push beside a delete of another stream": -50.0,
    "seconds from the start of 100 members to a message of each of 1,000 partitions": -2.0,
    "processor seconds of the node in a second for the leases of 100 members": -0.05,
}
"""What is wanted of each figure, in the order of the table by which they were asked for; negative: at most."""
TINY = msgspec.structs.replace(QUICK, messages=300, single=20, deleted=5_000, retained_seconds=0.5)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_each_figure_that_was_asked_for_has_a_goal() -> None:
    """Goal: no figure is forgotten, and no bound is changed in passing. Method: the goals of a report without samples,
    beside a second list of what was asked for."""
    empty = Report(started="", machine="", sqlite="", quick=False)
    found = {goal.what: -goal.wanted if goal.at_most else goal.wanted for goal in goals(empty)}
    assert {what: found.get(what) for what in WANTED} == WANTED


def test_the_selection_has_parts_and_leaves_out_only_what_a_plan_has() -> None:
    assert set(COSTS) <= {*PARTS, *SCALES}
    for plan in (Plan(), QUICK):
        less = run.costs_plan(plan)
        assert (less.windows, less.rounds) == ((100,), plan.rounds)
        assert less.seconds <= plan.seconds


@pytest.mark.soak
def test_the_selection_measures_what_its_goals_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one command has a sample for each goal. Method: its smallest run, without peers: a goal whose number of
    streams or clients is part of its name has a figure only in a whole run, so the works are looked at."""
    monkeypatch.setattr(run, "QUICK", TINY)
    run_bench("costs", Options(quick=True, output=Path("report.json")))
    report = msgspec.json.decode(Path("report.json").read_bytes(), type=Report)
    assert {sample.work for sample in report.samples} >= {
        *("push", "pull", "push to many streams", "push to some of the streams that exist", "push by many clients"),
        *("latency", "push by size", "push of large messages", "pull of large messages", "follow", "http"),
        *("group: from the start of its members to a message of each partition",),
        *("group: the node, while nothing is pushed",),
        *("group: the node, while its members hold their leases and read nothing",),
        *("group: from a member's kill to the next message of its partitions",),
        *(deleting.DELETED, deleting.RETAINED, "flood: pushed beside a flood"),
        *(standing.STARTED, standing.STOPPED, standing.OPENED, standing.COMMAND),
    }
    measured = {goal.what for goal in report.goals if goal.measured is not None}
    whole = ("valkey", "nats", "100,000 partitions", "0 streams", "0 followers")
    alone = {what for what in WANTED if not any(part in what for part in whole)}
    # So few deleted messages can be gone before the room of the first ones comes back.
    assert alone - measured <= {"MB of deleted messages given back to the file system a second"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.soak
def test_partitions_are_counted_by_a_node_that_has_them() -> None:
    """Goal: starts, ends, memory and commands are those of a node that has the partitions. Method: a small plan."""
    plan = msgspec.structs.replace(TINY, existing=300, opened=50)
    found = list(standing.samples(plan))
    assert [(each.work, each.system, each.streams) for each in found] == [
        *((work, system, 0) for system in (OURS, standing.WITH_HTTP) for work in (standing.STARTED, standing.STOPPED)),
        *((work, OURS, 300) for work in (standing.STARTED, standing.OPENED, standing.STOPPED)),
        *((standing.COMMAND, command, 1) for command in (standing.HELP, standing.PUSH_LINE)),
    ]
    assert all(each.seconds > 0 for each in found)
    assert [each.clients for each in found if each.work == standing.OPENED] == [50]


def test_the_parts_of_a_profile_are_those_of_their_libraries() -> None:
    """Goal: no part of a profile is lost, and none is counted for another. Method: lines as perf prints them."""
    report = """# Samples: 6K of event 'cpu-clock'
    78.65%  libpython3.11.so.1.0
    12.69%  [kernel.kallsyms]
     3.48%  libsqlite3.so.0.8.6
     3.01%  libc.so.6
     0.02%  libcrypto.so.3
     0.16%  libz.so.1.2.13
     1.99%  _core.cpython-311-x86_64-linux-gnu.so
"""
    found = {part: round(share, 2) for part, share in shares(report).items()}
    parts = {"interpreter": 78.65, "SQLite": 3.48, "kernel": 12.69, "C library": 3.01, "checksums": 0.16, "other": 2.01}
    assert found == parts


@pytest.mark.soak
@pytest.mark.skipif(not (shutil.which("perf") and shutil.which("strace")), reason="perf and strace are not installed")
def test_a_work_is_profiled(tmp_path: Path) -> None:
    """Goal: a profile is of the node that did the work. Method: single pushes, of which each is at least one sync."""
    command = [sys.executable, "-m", "bench.profiles", "single push"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row = done.stdout.splitlines()[-1]
    assert row.startswith("| single push |")
    assert "fdatasync 1," in row or "fdatasync 1 " in row
    assert list(tmp_path.iterdir()) == []
