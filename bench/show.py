"""Prints a report for people: the machine, the tables of all work that was measured, and the goals."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.report import Report
from bench.tables import FigureTable, codec_table, goal_table, work_tables


def show(report: Report, console: Console) -> None:
    load = " to ".join(f"{each:.1f}" for each in report.load)
    console.print(f"{report.machine}; SQLite {report.sqlite}; load {load}")
    for name, version in report.versions.items():
        console.print(f"{name}: {version}")
    for absent in report.absent:
        console.print(f"absent: {absent}")
    for table in work_tables(report):
        _print(table, console)
    for system, durability in dict.fromkeys((sample.system, sample.durability) for sample in report.samples):
        console.print(f"durability of {system}: {durability}")
    if report.codecs:
        _print(codec_table(report), console)
    measured = [goal for goal in report.goals if goal.measured is not None]
    if measured:
        _print(goal_table(measured), console)


def _print(table: FigureTable, console: Console) -> None:
    shown = Table(*table.headings, title=table.title, title_justify="left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
