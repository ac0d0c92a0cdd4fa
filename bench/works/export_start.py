"""Measures what a periodic export costs when there is nothing to do, and how late its daemon makes a message visible.

The commands run in processes of their own, as users and cron start them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.errors import PeerFailed
from bench.plan import Plan
from bench.report import Sample, percentiles
from bench.servers.bench_node import BenchNode
from bench.works.export import CORES, is_possible
from stream_client import blocking

WORK = "whole run of an export"
STREAM = "a-handful"
ROWS = 100
NOTHING_NEW = "nothing new, no Spark"
VISIBLE = "push to visible row"
DAEMON = "daemon on Spark, every second"
POLL_S, VISIBLE_S = 0.02, 120.0


def samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """One sample for each whole run, and one of the daemon; none if the extra `spark` is not installed."""
    if not is_possible():
        return
    with BenchNode(place / "starting") as node, blocking.connect(node.address) as client:
        stream = client.create(STREAM)
        for _ in range(ROWS):
            stream.push(b"%0*d" % (plan.size_bytes, 0))
        for round_ in range(-1, plan.rounds):
            seconds, cpu_s = _export(node, place / "idle", ROWS if round_ < 0 else 0)
            if round_ >= 0:
                yield Sample(
                    work=WORK,
                    system=NOTHING_NEW,
                    durability="files synced",
                    round=round_,
                    messages=0,
                    seconds=seconds,
                    cpu_s=cpu_s,
                )
        if plan.visible:
            yield _until_visible(plan, node, stream, place / "visible")


def _export(node: BenchNode, folder: Path, rows: int) -> tuple[float, float]:
    """Runs the command once. Returns its seconds and its processor seconds.

    Raises PeerFailed if it does not export this number of rows.
    """
    command = [sys.executable, "-m", "stream_node", "export", "run", str(folder), "--node", node.address, "--json"]
    before, began_s = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - began_s, os.times()
    if done.returncode or json.loads(done.stdout)["rows"] != rows:
        raise PeerFailed(f"an export of {rows} rows into {folder}: {done.stdout}{done.stderr}")
    spent = after.children_user - before.children_user, after.children_system - before.children_system
    return seconds, sum(spent)


def _until_visible(plan: Plan, node: BenchNode, stream: blocking.Stream, folder: Path) -> Sample:
    """Pushes single messages to a node whose daemon exports every second, and measures how soon the table has each."""
    from spark_export.exporter.job import open_existing
    from spark_export.tables.errors import ExportError

    command = [sys.executable, "-m", "stream_node", "export", "daemon", str(folder), "--node", node.address]
    command += ["--stream", STREAM, "--every", "1s", "--master", f"local[{CORES},4]", "--log-level", "error"]

    def wait_for(end: int) -> float:
        """Returns the time at which a reader of the table finds the first `end` messages."""
        deadline_s = time.perf_counter() + VISIBLE_S
        while time.perf_counter() < deadline_s:
            try:
                if any(position.end >= end for position in open_existing(folder).load().positions.values()):
                    return time.perf_counter()
            except ExportError:
                # The daemon has not made the table yet.
                pass
            time.sleep(POLL_S)
        raise PeerFailed(f"the daemon has not exported message {end - 1} of {STREAM} in {VISIBLE_S:g} s")

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as daemon:
        try:
            wait_for(ROWS)
            began_s, times_us = time.perf_counter(), list[float]()
            for number in range(plan.visible):
                # The pushes come at all times between two runs.
                time.sleep(number * 0.37 % 1.0)
                pushed_s = time.perf_counter()
                times_us.append(1e6 * (wait_for(stream.push(b"%0*d" % (plan.size_bytes, number)) + 1) - pushed_s))
            seconds = time.perf_counter() - began_s
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    found = percentiles(times_us)
    return Sample(
        work=VISIBLE,
        system=DAEMON,
        durability="files synced",
        size_bytes=plan.size_bytes,
        messages=plan.visible,
        seconds=seconds,
        p50_us=found["p50_us"],
        p99_us=found["p99_us"],
    )
