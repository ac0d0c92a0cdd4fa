"""Writes the tables of docs/performance.md from a report of `python -m bench --output`. It measures nothing.

    python bench/write_tables.py bench/results/bench.json docs/performance.md

What stands between the two marks in the document is replaced; figures are medians over the rounds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

Sample = dict[str, Any]
Column = tuple[str, Callable[[Sample], float | None], str]


def _per_second(sample: Sample) -> float | None:
    seconds: float = sample["seconds"]
    return sample["messages"] / seconds if seconds else None


def _mib_per_second(sample: Sample) -> float | None:
    rate = _per_second(sample)
    return None if rate is None else rate * sample["size_bytes"] / 2**20


def _mib(sample: Sample) -> float | None:
    size_bytes: int | None = sample["server_memory_bytes"]
    return None if size_bytes is None else size_bytes / 2**20


def _cpu_us(sample: Sample) -> float | None:
    """Processor time of the server for one message, in microseconds."""
    cpu_s: float | None = sample["server_cpu_s"]
    return None if cpu_s is None or not sample["messages"] else cpu_s / sample["messages"] * 1e6


COLUMNS: tuple[Column, ...] = (
    ("messages/s", _per_second, "{:,.0f}"),
    ("MiB/s", _mib_per_second, "{:,.1f}"),
    ("p50 µs", lambda sample: sample["p50_us"], "{:,.0f}"),
    ("p99 µs", lambda sample: sample["p99_us"], "{:,.0f}"),
    ("p99.9 µs", lambda sample: sample["p999_us"], "{:,.0f}"),
    ("server CPU µs a message", _cpu_us, "{:,.1f}"),
    ("CPU s", lambda sample: sample.get("cpu_s"), "{:,.1f}"),
    ("server MiB", _mib, "{:,.0f}"),
    ("fsyncs/s", lambda sample: sample["fsyncs_per_second"], "{:,.0f}"),
)
KEYS = ("system", "window", "size_bytes", "streams", "clients", "log_messages")
HEADINGS = {
    "system": "who",
    "window": "window or page",
    "size_bytes": "bytes",
    "log_messages": "stored before",
}
TITLES = {
    "push": "Durable pushes by window",
    "latency": "Single durable pushes",
    "pull": "Stored messages pulled, 1,000 a page",
    "fanout": "Consumers that follow one publisher (messages are deliveries)",
    "push by size": "Durable pushes by size",
    "push by streams": "Durable pushes round robin to many streams",
    "push by clients": "Durable pushes by many connections to one stream",
    "memory": "Memory while ten million messages are pushed",
    "idle connections": "Memory with idle connections",
    "slow disk": "Publishers that wait for each confirm, when each sync takes 5 ms longer",
    "pull by log": "Single pulls from anywhere in a log",
    "push by log": "Pushes to the end of a log",
    "cardinal: made": "Cardinal messages made of blocks",
    "cardinal: put together and ordered": "Cardinal messages put together and ordered, in one process",
    "cardinal: sent through a node": "Cardinal messages sent through a node of four partitions",
    "cardinal: received and ordered through a node": "Cardinal messages received through a node and ordered",
    "export": "Messages of 200 bytes brought into Parquet by Spark, local[2] (CPU of Spark, Python and the node)",
    "push beside an export": "Pushes as long as an export runs on the same two cores, and alone",
    "whole run of an export": "Whole runs of `stream-node export run`, from start to end (p50 is the time of one)",
    "block: published until verified and durable": "Blocks published until verified and durable (messages are items)",
    "block: from its end to its acknowledgement": "Single blocks, from the end to the acknowledgement",
    "block: caught up with by a subscriber": "Blocks caught up with by a subscriber (messages are items)",
    "block: one of 100 MB, published, read and fetched": "One block of 100 MB, published, read and fetched",
    "backfill: filled from one node": "Holes filled from one other node (messages are blocks of 300 items)",
    "backfill: a live block, from its beginning to its acknowledgement": "Live blocks, with and without a backfill",
    "backfill: filled beside live blocks": "Holes filled beside twenty live blocks a second",
    "backfill: filled with blocks of a megabyte": "Growth of the node with buffers of two sizes (window, bytes)",
}


def tables(report: dict[str, Any]) -> Iterator[str]:
    """The document's tables, line by line."""
    load = ", ".join(f"{each:.1f}" for each in report["load"])
    until = f" to {report['ended']}" if report.get("ended") else ""
    yield f"Measured {report['started']}{until} on {report['machine']}, SQLite {report['sqlite']}."
    yield f"Load of the machine (one minute) at the start and end of each part: {load}."
    for name, version in sorted(report["versions"].items()):
        yield f"\n{name}: {version}"
    for absent in report["absent"]:
        yield f"\nNot measured: {absent}"
    yield "\n### Goals\n"
    yield from _table(("goal", "wanted", "measured", "met"), [_goal(goal) for goal in report["goals"]])
    for work, title in TITLES.items():
        samples = [sample for sample in report["samples"] if sample["work"] == work]
        if samples:
            yield f"\n### {title}\n"
            yield from _work(samples)
    if report["codecs"]:
        yield "\n### BARE PushRequest, validating\n"
        yield from _table(("codec", "encoded/s", "decoded/s"), _codecs(report["codecs"]))


def _goal(goal: dict[str, Any]) -> list[str]:
    measured, wanted = goal["measured"], goal["wanted"]
    bound = f"at {'most' if goal['at_most'] else 'least'} {wanted:g}"
    if measured is None:
        return [goal["what"], bound, "", "not measured"]
    met = measured <= wanted if goal["at_most"] else measured >= wanted
    return [goal["what"], bound, f"{measured:.2f}", "yes" if met else "**no**"]


def _codecs(codecs: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    for name in dict.fromkeys(sample["codec"] for sample in codecs):
        rounds = [sample for sample in codecs if sample["codec"] == name]
        figures = (median(sample[f"{way}_per_second"] for sample in rounds) for way in ("encode", "decode"))
        yield [name, *(f"{figure:,.0f}" for figure in figures)]


def _work(samples: Sequence[Sample]) -> Iterator[str]:
    """A row for each that differs in anything but the round; columns that say nothing here are left out."""
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(tuple(sample[key] for key in KEYS), []).append(sample)
    keys = [at for at, key in enumerate(KEYS) if key == "system" or len({group[at] for group in groups}) > 1]
    columns = [column for column in COLUMNS if any(column[1](sample) is not None for sample in samples)]
    rows = []
    for group, rounds in groups.items():
        cells = [f"{group[at]:,}" if isinstance(group[at], int) else str(group[at]) for at in keys]
        for _, figure, form in columns:
            figures = [value for sample in rounds if (value := figure(sample)) is not None]
            cells.append(form.format(median(figures)) if figures else "")
        rows.append(cells)
    headings = [HEADINGS.get(KEYS[at], KEYS[at]) for at in keys]
    yield from _table([*headings, *(column[0] for column in columns)], rows)


def _table(headings: Sequence[str], rows: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main() -> None:
    source, document = map(Path, sys.argv[1:])
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{document} has no place for the tables: {BEGIN} and {END}")
    lines = "\n".join(tables(json.loads(source.read_text())))
    document.write_text(f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
