"""Measures a whole `stream-node export run` that has next to nothing to do, with each Java and without Spark.

The command runs in a process of its own and is timed from its start to its end, as its user or cron waits for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.errors import PeerFailed
from bench.plan import Plan
from bench.report import Sample
from bench.servers.bench_node import BenchNode
from bench.works.export import CORES, is_possible
from stream_client import blocking

WORK = "whole run of an export"
STREAM = "a-handful"
ROWS = 100
NOTHING_NEW = "nothing new, no Spark"
CACHED = "{}, class cache"
CACHE_TIMEOUT_S = 60.0
"""The JVM writes its class cache when it ends, and the command ends before the JVM does."""


def samples(plan: Plan, place: Path) -> Iterator[Sample]:
    """One sample for each way and round; none if the extra `spark` is not installed. p50_us is the time of the run."""
    if not is_possible():
        return
    with BenchNode(place / "starting") as node, blocking.connect(node.address) as client:
        stream = client.create(STREAM)
        ways = _ways(place) if plan.starts else {}
        for round_ in range(-1, plan.starts):
            for _ in range(ROWS):
                stream.push(b"%0*d" % (plan.size_bytes, round_))
            for system, (arguments, environment) in ways.items():
                seconds = _export(node, place / "starts" / system, ROWS, *arguments, environment=environment)
                if round_ < 0:
                    _wait_for_classes(arguments)
                else:
                    yield _sample(system, round_, ROWS, plan, seconds)
        for round_ in range(-1, plan.rounds):
            rows = ROWS * (plan.starts + 1) if round_ < 0 else 0
            seconds = _export(node, place / "idle", rows, "--master", "inline" if round_ < 0 else f"local[{CORES},4]")
            if round_ >= 0:
                yield _sample(NOTHING_NEW, round_, 0, plan, seconds)


def _sample(system: str, round_: int, messages: int, plan: Plan, seconds: float) -> Sample:
    return Sample(
        work=WORK,
        system=system,
        durability="files synced",
        round=round_,
        size_bytes=plan.size_bytes,
        messages=messages,
        seconds=seconds,
        p50_us=seconds * 1e6,
    )


def _ways(place: Path) -> dict[str, tuple[tuple[str, ...], Mapping[str, str]]]:
    """Arguments and environment for the Java of the wheel, with its class cache and without, and the machine's own."""
    from spark_export import java

    found: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {}
    master = ("--master", f"local[{CORES},4]")
    unset = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    packed = java.find_packed_java()
    if packed is not None:
        name = f"Java {java.java_version(packed.parent.parent)}"
        found[CACHED.format(name)] = ((*master, "--aot-cache", str(place / "classes.aot")), unset)
        found[name] = (master, unset)
    machines = shutil.which("java")
    if machines is not None:
        home = Path(machines).resolve().parent.parent
        name = f"Java {java.java_version(home)}"
        found.setdefault(name, (master, {**unset, "JAVA_HOME": str(home)}))
    return found


def _wait_for_classes(arguments: tuple[str, ...]) -> None:
    """Wait until the JVM has written the class cache that these arguments name."""
    if "--aot-cache" not in arguments:
        return
    cache = Path(arguments[arguments.index("--aot-cache") + 1])
    deadline_s = time.monotonic() + CACHE_TIMEOUT_S
    while not cache.exists():
        if time.monotonic() > deadline_s:
            raise PeerFailed(f"Java has not written {cache} in {CACHE_TIMEOUT_S:g} s")
        threading.Event().wait(0.1)


def _export(
    node: BenchNode, folder: Path, rows: int, *arguments: str, environment: Mapping[str, str] | None = None
) -> float:
    """Run the command once. Returns its seconds. Raises PeerFailed if it does not export this number of rows."""
    command = [sys.executable, "-m", "stream_node", "export", "run", str(folder), "--node", node.address, "--json"]
    began_s = time.perf_counter()
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began_s
    if done.returncode or json.loads(done.stdout)["rows"] != rows:
        raise PeerFailed(f"an export of {rows} rows into {folder}: {done.stdout}{done.stderr}")
    return seconds
