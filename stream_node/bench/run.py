"""Runs measurements and prints them. Every push is fsynced before its confirm; figures are ratios within one run."""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from stream_node.bench.codec import CodecRate, compare
from stream_node.bench.errors import UnknownBench
from stream_node.bench.measure import Latency, Rate, pull_rate, push_latency, push_rate
from stream_node.process import NodeProcess

WINDOWS = (1, 100, 1_000, 10_000)
SINGLE_MESSAGES = 2_000
CEILING_LINE = re.compile(r"window\s+(\d+):\s+([\d,]+)")
DURABILITY = "fsync before every confirm (WAL, synchronous=FULL)"


class Report(msgspec.Struct, kw_only=True):
    """What a run of the bench found. ceiling: pushes per second of the prototype, by window, where one was given."""

    machine: str
    sqlite: str
    durability: str = DURABILITY
    rates: list[Rate] = []
    latencies: list[Latency] = []
    codecs: list[CodecRate] = []
    ceiling: dict[int, float] = {}


def run_bench(what: str, *, messages: int, size_bytes: int, ceiling: Path | None, as_json: bool) -> None:
    """Measure and print. Raises UnknownBench."""
    parts: dict[str, Callable[[Report], None]] = {
        "push": lambda report: _bench_push(report, messages, size_bytes, ceiling),
        "latency": lambda report: _bench_latency(report, size_bytes),
        "pull": lambda report: _bench_pull(report, messages, size_bytes),
        "codec": lambda report: report.codecs.extend(compare()),
    }
    if what != "all" and what not in parts:
        raise UnknownBench(f"no bench {what!r}; there are {', '.join(parts)} and all")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}"
    report = Report(machine=machine, sqlite=sqlite3.sqlite_version)
    for name in parts if what == "all" else (what,):
        parts[name](report)
    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(report, str_keys=True)) + "\n")
    else:
        _print(report)


def _bench_push(report: Report, messages: int, size_bytes: int, ceiling: Path | None) -> None:
    for window in WINDOWS:
        count = min(messages, SINGLE_MESSAGES) if window == 1 else messages
        if ceiling is not None:
            report.ceiling[window] = _run_ceiling(ceiling, messages, window)
        with BenchNode() as node:
            push = partial(push_rate, node, messages=count, size_bytes=size_bytes, window=window, stream="bench")
            report.rates.append(trio.run(push))


def _bench_latency(report: Report, size_bytes: int) -> None:
    with BenchNode() as node:
        report.latencies.append(trio.run(lambda: push_latency(node, messages=SINGLE_MESSAGES, size_bytes=size_bytes)))


def _bench_pull(report: Report, messages: int, size_bytes: int) -> None:
    with BenchNode() as node:
        trio.run(lambda: push_rate(node, messages=messages, size_bytes=size_bytes, window=10_000, stream="bench"))
        report.rates.append(trio.run(lambda: pull_rate(node, messages=messages, stream="bench", size_bytes=size_bytes)))


class BenchNode(NodeProcess):
    """A node on a fresh data directory, under the working directory's disk and not a memory file system."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix=".bench-", dir=".")
        super().__init__(Path(self._directory.name) / "data", arguments=["--log-level", "warning"])

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._directory.cleanup()


def _run_ceiling(script: Path, messages: int, window: int) -> float:
    """Pushes per second of a prototype that prints lines like `window 100: 128,000 durable pushes/s`."""
    output = subprocess.run(
        [sys.executable, str(script), str(messages), str(window)], capture_output=True, check=True, text=True
    ).stdout
    found = CEILING_LINE.search(output)
    if found is None:
        raise UnknownBench(f"{script} printed no line like 'window {window}: 100,000'")
    return float(found[2].replace(",", ""))


def _print(report: Report) -> None:
    console = Console()
    console.print(f"{report.machine}; SQLite {report.sqlite}; {report.durability}")
    if report.rates:
        table = Table(
            "what", "window or page", "messages", "bytes each", "messages/s", "of ceiling", "server CPU s", "server MiB"
        )
        for rate in report.rates:
            ceiling = report.ceiling.get(rate.window) if rate.what == "push" else None
            row: list[Any] = [rate.what, rate.window, f"{rate.messages:,}", rate.size_bytes, f"{rate.per_second:,.0f}"]
            row += [f"{rate.per_second / ceiling:.2f}" if ceiling else "", f"{rate.server_cpu_s:.2f}"]
            table.add_row(*map(str, row), f"{rate.server_memory_bytes / 2**20:.0f}")
        console.print(table)
    if report.latencies:
        table = Table("what", "messages", "bytes each", "p50 µs", "p99 µs", "p99.9 µs")
        for latency in report.latencies:
            times = (latency.p50_us, latency.p99_us, latency.p999_us)
            table.add_row(latency.what, f"{latency.messages:,}", str(latency.size_bytes), *(f"{t:,.0f}" for t in times))
        console.print(table)
    if report.codecs:
        table = Table("codec", "encode/s", "decode/s")
        for codec in report.codecs:
            table.add_row(codec.codec, f"{codec.encode_per_second:,.0f}", f"{codec.decode_per_second:,.0f}")
        console.print(table)
