"""Prints a report for people: the goals, then a table a kind of work, medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.plan import MIB
from bench.report import Report, Sample

Group = tuple[str, str, int, int, int, int, int]


def show(report: Report, console: Console) -> None:
    """Everything of the report that has figures."""
    load = " to ".join(f"{each:.1f}" for each in report.load)
    console.print(f"{report.machine}; SQLite {report.sqlite}; load {load}")
    for name, version in report.versions.items():
        console.print(f"{name}: {version}")
    for absent in report.absent:
        console.print(f"absent: {absent}")
    if report.samples:
        _show_samples(report, console)
    if report.codecs:
        table = Table("codec", "encoded/s", "decoded/s")
        for codec in dict.fromkeys(sample.codec for sample in report.codecs):
            rounds = [sample for sample in report.codecs if sample.codec == codec]
            encoded, decoded = (
                median(s.encode_per_second for s in rounds),
                median(s.decode_per_second for s in rounds),
            )
            table.add_row(codec, f"{encoded:,.0f}", f"{decoded:,.0f}")
        console.print(table)
    if any(goal.measured is not None for goal in report.goals):
        table = Table("goal", "wanted", "measured", "met")
        for goal in report.goals:
            if goal.measured is not None:
                bound = "at most" if goal.at_most else "at least"
                table.add_row(
                    goal.what, f"{bound} {goal.wanted:g}", f"{goal.measured:.2f}", "yes" if goal.met else "NO"
                )
        console.print(table)


def _show_samples(report: Report, console: Console) -> None:
    groups: dict[Group, list[Sample]] = {}
    for sample in report.samples:
        key = (
            sample.work,
            sample.system,
            sample.window,
            sample.size_bytes,
            sample.streams,
            sample.clients,
            sample.log_messages,
        )
        groups.setdefault(key, []).append(sample)
    table = Table(
        "work",
        "who",
        "window",
        "bytes",
        "streams",
        "clients",
        "stored",
        "messages/s",
        "MiB/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU s",
        "MiB",
        "fsyncs/s",
    )
    for (work, system, *numbers), rounds in groups.items():
        table.add_row(
            work,
            system,
            *(f"{number:,}" for number in numbers),
            _middle(rounds, lambda sample: sample.per_second or None, "{:,.0f}"),
            _middle(rounds, lambda sample: sample.bytes_per_second / MIB or None, "{:,.1f}"),
            _middle(rounds, lambda sample: sample.p50_us, "{:,.0f}"),
            _middle(rounds, lambda sample: sample.p99_us, "{:,.0f}"),
            _middle(rounds, lambda sample: sample.p999_us, "{:,.0f}"),
            _middle(
                rounds, lambda sample: sample.cpu_s if sample.server_cpu_s is None else sample.server_cpu_s, "{:.2f}"
            ),
            _middle(rounds, lambda sample: (sample.server_memory_bytes or 0) / MIB or None, "{:,.0f}"),
            _middle(rounds, lambda sample: sample.fsyncs_per_second, "{:,.0f}"),
        )
    console.print(table)
    for durability in dict.fromkeys((sample.system, sample.durability) for sample in report.samples):
        console.print(f"durability of {durability[0]}: {durability[1]}")


def _middle(rounds: list[Sample], figure: Callable[[Sample], float | None], form: str) -> str:
    figures = [value for sample in rounds if (value := figure(sample)) is not None]
    return form.format(median(figures)) if figures else ""
