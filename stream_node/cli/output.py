"""Prints the output of commands: text for people, or one JSON object per line; and the progress of long ones."""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import typer

from stream_node.cli.values import CommandFailed, printable
from stream_node.node.log_writer import write_waiting_lines

TABLE_COLUMNS = 80
GAP = "  "


AS_JSON: ContextVar[bool] = ContextVar("as_json", default=False)
"""Whether the command that runs was given --json (`stream_node.cli.commands`)."""


def say(report: Mapping[str, Any], text: str | Iterable[str]) -> None:
    """Prints the report as JSON with --json, else the text, which may have several lines."""
    say_each([report], text)


def say_each(reports: Iterable[Mapping[str, Any]], text: str | Iterable[str]) -> None:
    if not AS_JSON.get():
        return say_text(text)
    for report in reports:
        say_json(report)


def say_text(text: str | Iterable[str]) -> None:
    for line in (text,) if isinstance(text, str) else text:
        typer.echo(printable(line))


def wants_json() -> bool:
    """Whether this process was started with `--json`, also if its arguments cannot be parsed."""
    return "--json" in sys.argv


def tell(text: str, exit_code: int | None = None) -> None:
    """Prints a warning on stderr, after the log lines so far: a line, or with `--json` an object with `warning`.
    With `exit_code`, the text is the error that ends the command; `--json` prints it as `error`, with `exit_code`."""
    write_waiting_lines()
    report = {"warning": text} if exit_code is None else {"error": text, "exit_code": exit_code}
    typer.echo(json.dumps(report) if wants_json() else f"stream-node: {printable(text)}", err=True)


def say_json(report: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(report))


def confirm(question: str) -> None:
    """Asks on stderr before something is destroyed. Raises CommandFailed if the answer is not exactly `yes`."""
    if not sys.stdin.isatty():
        raise CommandFailed(f"nothing was changed, since there is no terminal to ask at; say --yes. {question}")
    typer.echo(f"{printable(question)} This cannot be undone. Type yes: ", err=True, nl=False)
    if sys.stdin.readline().strip() != "yes":
        raise CommandFailed("nothing was changed")


def counted(number: int, noun: str) -> str:
    """Formats a count with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(size_bytes: int) -> str:
    """Formats a size: "512 B", "1.5 KiB", "20 GiB"."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "B" and size < 10 else f"{size:.0f} {unit}"


def duration_text(seconds: float | None) -> str:
    """Formats a duration with one unit: "5s", "3m", "7h", "12d"."""
    if seconds is None:
        return "-"
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size_s:
            return f"{seconds // size_s:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def age_text(time_us: int | None, now_us: int | None) -> str:
    """Formats how long ago a time was; "-" if it is not known."""
    return "-" if time_us is None or now_us is None else duration_text((now_us - time_us) / 1e6)


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yields the lines of a table, each column as wide as its widest cell. In a table wider than a terminal, a column
    of text gets less room as long as three of four rows fit. right: the columns aligned to the right."""
    shown = [[printable(cell) for cell in row] for row in rows]
    found = [sorted(map(_width, column)) for column in zip(*shown, strict=True)]
    widths = [column[-1] for column in found]
    # The last column is not padded, so its long cells cost no other row anything.
    excess = sum(widths[:-1]) + _width(shown[0][-1]) + len(GAP) * (len(widths) - 1) - TABLE_COLUMNS
    for at in sorted(range(len(widths) - 1), key=lambda at: -widths[at]):
        if at not in right and excess > 0:
            spared = min(excess, widths[at] - found[at][-1 - len(shown) // 4])
            widths[at] -= spared
            excess -= spared
    for row in shown:
        cells = [
            " " * (width - _width(cell)) + cell if at in right else cell + " " * (width - _width(cell))
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield GAP.join(cells).rstrip()


def _width(text: str) -> int:
    """Returns how many columns of a terminal the text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


DRAWN_EVERY_S = 0.1
"""The shortest interval between two drawings. Faster changes could not be read."""
ESTIMATED_AFTER_S = 1.0
"""The time after which the remaining time is shown. An earlier estimate would be a guess."""
BAR_COLUMNS_MIN, BAR_COLUMNS_MAX = 10, 40
COLUMNS_DEFAULT = 80


class ProgressLine:
    """Draws the progress of a command as one line at the terminal, and removes it at the end of the `with` block.
    enabled: stderr is a terminal, the command is in the foreground, and nobody types its input."""

    def __init__(self, *, input_is_typed: bool = False) -> None:
        self.enabled = sys.stderr.isatty() and not input_is_typed
        with suppress(OSError):
            # A command in the background (`&`) would draw into other output.
            self.enabled = self.enabled and os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
        self._what = ""
        self._began_s = self._drawn_s = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            typer.echo("\r\x1b[K", err=True, nl=False)

    def draw(self, what: str, done: int, total: int | None, facts: Sequence[str] = ()) -> None:
        """Draws the progress of a step, at most ten times a second. total: None if it is unknown.
        facts: further texts, the most important first; those that do not fit are left out."""
        now_s = time.monotonic()
        if not self.enabled or now_s < self._drawn_s + DRAWN_EVERY_S:
            return
        if what != self._what:
            self._what, self._began_s = what, now_s
        self._drawn_s = now_s
        text = progress_text(what, done, total, facts, now_s - self._began_s, _columns())
        typer.echo(f"\r{text}\x1b[K", err=True, nl=False)

    def count(self, what: str, done: int, total: int | None) -> None:
        """Draws the progress of a step. If the total is unknown, the line has the count `done`."""
        self.draw(what, done, total, () if total else [f"{done:,}"])


def progress_text(what: str, done: int, total: int | None, facts: Sequence[str], elapsed_s: float, columns: int) -> str:
    """Returns the progress of a step in at most `columns` - 1 characters. After the name of the step come, if the
    total is known, the done share, the remaining time and, if there is room, a bar. The facts that fit follow."""
    words = [what]
    share = min(1.0, done / total) if total else None
    if share is not None:
        words.append(f"{share:4.0%}")
        if share and elapsed_s >= ESTIMATED_AFTER_S:
            words.append(f"{_time_text(elapsed_s / share - elapsed_s)} left")
    for fact in facts:
        if len("  ".join([*words, fact])) < columns:
            words.append(fact)
    spare = columns - 1 - len("  ".join(words)) - len("  []")
    if share is not None and spare >= BAR_COLUMNS_MIN:
        size = min(spare, BAR_COLUMNS_MAX)
        filled = int(size * share)
        words.insert(1, f"[{'#' * filled}{' ' * (size - filled)}]")
    return "  ".join(words)[: columns - 1]


def _time_text(seconds: float) -> str:
    """Formats a remaining time as "5 s", "2 min" or "3 h". It is an estimate, so it is rounded."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6_000 else f"{round(seconds / 3_600)} h"


def _columns() -> int:
    with suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS_DEFAULT
    return COLUMNS_DEFAULT
