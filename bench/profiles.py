"""Shows where a node spends its processor time in some works, and how many system calls they take (Linux).

    python -m bench.profiles page "1 MB pulled"

perf splits the time by the library in which it was spent; strace counts the calls in a second, shorter run. Both must
be installed. Shares hold on a busy machine; times of the processor only on a quiet one.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from bench.compared import CLIENT_LIMITS
from bench.own import Own
from bench.servers.bench_node import BenchNode
from bench.works import group

Work = Callable[[BenchNode, int], int]
"""Does a work on a node, with its messages divided by the second argument. Returns the number of messages done."""
PARTS: Final = {
    "libpython": "interpreter",
    "python": "interpreter",
    "libsqlite3": "SQLite",
    "[kernel": "kernel",
    "libc.": "C library",
    "libz.": "checksums",
}
"""The beginnings of the names of libraries, and the part that each stands for; all others are "other"."""
COLUMNS: Final = ("interpreter", "SQLite", "kernel", "C library", "checksums", "other")
ATTACH_S: Final = 2.0
SHORTER: Final = 4
CALLS: Final = 8
"""The number of system calls that are named, the most frequent ones."""


def _own(node: BenchNode, shorter: int, action: str, **load: Any) -> int:
    load["messages"] //= shorter
    return Own().measure(node, action, work=action, round_=0, stream="bench.0", **load).messages


def _group(node: BenchNode, shorter: int) -> int:
    """Starts a group with ten partitions for each member. The profile also has the wait after the start, which takes as
    long, and the members that only hold leases."""
    members = 100 // shorter
    return trio.run(group.start, node, members, members * 10, 0.0, 0)[0].messages


SMALL: Final[dict[str, Any]] = {"size_bytes": 100}
WORKS: Final[dict[str, Work]] = {
    "1,000 clients": partial(_own, action="clients", messages=20_000, window=1, streams=1_000, **SMALL),
    "10,000 streams": partial(_own, action="push_in_turn", messages=100_000, window=10_000, streams=10_000, **SMALL),
    "single push": partial(_own, action="latency_blocking", messages=4_000, window=1, **SMALL),
    "window 100": partial(_own, action="push", messages=100_000, window=100, **SMALL),
    "10 KB pushed": partial(_own, action="push", messages=13_000, window=1_000, size_bytes=10_000),
    "1 MB pushed": partial(_own, action="push", messages=200, window=64, size_bytes=1_000_000),
    "page": partial(_own, action="follow", messages=400_000, window=1_000, **SMALL),
    "1 MB pulled": partial(_own, action="follow", messages=200, window=1_000, size_bytes=1_000_000),
    "group": _group,
}
FILLED: Final[dict[str, Work]] = {
    "page": partial(_own, action="push", messages=400_000, window=1_000, **SMALL),
    "1 MB pulled": WORKS["1 MB pushed"],
}
"""The works that read, each with the work that stores what it reads."""


def main(names: Sequence[str]) -> None:
    headings = ("work", "µs a message", *COLUMNS, "written a message", "system calls a message")
    sys.stdout.write(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}\n")
    for name in names or WORKS:
        sys.stdout.write(f"| {' | '.join(_row(name))} |\n")
        sys.stdout.flush()


def _row(name: str) -> Iterator[str]:
    work = WORKS[name]
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder, BenchNode(environment=CLIENT_LIMITS) as node:
        if name in FILLED:
            FILLED[name](node, 1)
        samples, calls = Path(folder) / "samples", Path(folder) / "calls"
        with _beside("perf", "record", "-e", "cpu-clock", "-F", "997", "-p", str(node.pid), "-o", str(samples)):
            cpu_s, written = node.cpu_seconds(), node.written_bytes()
            messages = work(node, 1)
            cpu_s, written = node.cpu_seconds() - cpu_s, node.written_bytes() - written
        with _beside("strace", "-c", "-f", "-U", "calls,name", "-p", str(node.pid), "-o", str(calls)):
            traced = work(node, SHORTER)
        report = ["perf", "report", "-i", str(samples), "--sort", "dso", "--stdio"]
        parts = shares(subprocess.run(report, check=True, capture_output=True, text=True).stdout)
        counted = Counter({what: int(count) for count, what in re.findall(r"^ *(\d+) (\w+)$", calls.read_text(), re.M)})
    del counted["total"]
    yield from (name, f"{1e6 * cpu_s / messages:,.1f}")
    yield from (f"{parts[column]:.0f} %" for column in COLUMNS)
    yield f"{written / messages:,.0f} B"
    yield ", ".join(f"{what} {_short(count / traced)}" for what, count in counted.most_common(CALLS))


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"


def shares(report: str) -> dict[str, float]:
    """The share of each part in percent, from a report of perf."""
    found = dict.fromkeys(COLUMNS, 0.0)
    for percent, library in re.findall(r"^ *([\d.]+)% +(\S+)", report, re.M):
        parts = [part for beginning, part in PARTS.items() if library.startswith(beginning)]
        found[parts[0] if parts else "other"] += float(percent)
    return found


@contextmanager
def _beside(*command: str) -> Iterator[None]:
    """Runs a tracer for the time of the block."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tracer:
        # Neither program says when it has begun.
        time.sleep(ATTACH_S)
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1:])
