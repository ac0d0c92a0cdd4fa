"""Writes the tables of docs/performance.md from a report of `python -m bench --output`. It measures nothing.

    python -m bench.write_tables bench/results/bench.json docs/performance.md

The text between the two marks in the document is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.report import Report
from bench.tables import FigureTable, codec_table, goal_table, work_tables

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def lines(report: Report) -> Iterator[str]:
    """The text between the marks, line by line."""
    load = ", ".join(f"{each:.1f}" for each in report.load)
    until = f" to {report.ended}" if report.ended else ""
    yield f"Measured {report.started}{until} on {report.machine}, SQLite {report.sqlite}."
    yield f"Load of the machine (one minute) at the start and end of each part: {load}."
    for name, version in sorted(report.versions.items()):
        yield f"\n{name}: {version}"
    for absent in report.absent:
        yield f"\nNot measured: {absent}"
    yield from _markdown(goal_table(report.goals))
    for table in work_tables(report):
        yield from _markdown(table)
    if report.codecs:
        yield from _markdown(codec_table(report))


def _markdown(table: FigureTable) -> Iterator[str]:
    yield f"\n### {table.title}\n"
    yield f"| {' | '.join(table.headings)} |"
    yield f"|{'---|' * len(table.headings)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"


def main() -> None:
    source, document = map(Path, sys.argv[1:])
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{document} has no place for the tables: {BEGIN} and {END}")
    written = "\n".join(lines(msgspec.json.decode(source.read_bytes(), type=Report)))
    document.write_text(f"{before}{BEGIN}\n\n{written}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
