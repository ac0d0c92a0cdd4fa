"""Shows the progress of a long command as one line on stderr. The line is redrawn, and removed at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stream_storage.sqlite.backup import Progress

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
        self.enabled = sys.stderr.isatty() and not input_is_typed and _has_the_terminal()
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


def progress_text(what: str, done: int, total: int | None, facts: Sequence[str], elapsed_s: float, columns: int) -> str:
    """Returns at most `columns` - 1 characters: the name of the step; with a known total, the share that is done, the
    remaining time and, if there is room, a bar; and facts while they fit."""
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


@contextmanager
def progress_shown() -> Iterator[Progress]:
    with ProgressLine() as line:
        yield lambda what, done, total: line.draw(what, done, total, () if total else [f"{done:,}"])


def _time_text(seconds: float) -> str:
    """Formats a remaining time as "5 s", "2 min" or "3 h". An estimate is not more exact than this."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6_000 else f"{round(seconds / 3_600)} h"


def _has_the_terminal() -> bool:
    """Whether this command is in the foreground. In the background (`&`), it would draw into the output of others."""
    with suppress(OSError):
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True


def _columns() -> int:
    with suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS_DEFAULT
    return COLUMNS_DEFAULT
