"""The progress of a long command, as one line on stderr that is redrawn and removed at the end. It measures no work
itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream_node.backup import Progress

DRAWN_EVERY_S = 0.1
"""The time between two drawings: faster ones cannot be read."""
ESTIMATED_AFTER_S = 1.0
"""Before this time, the time left is only a guess."""
BAR_COLUMNS_MIN, BAR_COLUMNS_MAX = 10, 40
COLUMNS_DEFAULT = 80
"""The width of a terminal that does not tell its width."""


class ProgressLine:
    """ProgressLine: draws how far a command is. A context manager: the line is gone when the block ends.

    enabled: False where nothing may be drawn: stderr is no terminal, another program has the terminal (the command is
    in the background), or the user types the input of the command there.
    """

    def __init__(self, *, input_is_typed: bool = False) -> None:
        self.enabled = sys.stderr.isatty() and not input_is_typed and _has_the_terminal()
        self._what = ""
        self._began_s = self._drawn_s = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            _write("\r\x1b[K")

    def draw(self, what: str, done: int, total: int | None, facts: Sequence[str] = ()) -> None:
        """Draw how far the command is, at most ten times a second. facts: more to say where there is room, the first
        ones first."""
        now_s = time.monotonic()
        if not self.enabled or now_s < self._drawn_s + DRAWN_EVERY_S:
            return
        if what != self._what:
            self._what, self._began_s = what, now_s
        self._drawn_s = now_s
        _write("\r" + progress_text(what, done, total, facts, now_s - self._began_s, _columns()) + "\x1b[K")


def progress_text(what: str, done: int, total: int | None, facts: Sequence[str], elapsed_s: float, columns: int) -> str:
    """The line: what is done, and the share and the time left where the total is known; then as many facts as fit, and
    a bar in the remaining room."""
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
    """Yields a function that draws the progress of a command while the block runs."""
    with ProgressLine() as line:
        yield lambda what, done, total: line.draw(what, done, total, () if total else [f"{done:,}"])


def _time_text(seconds: float) -> str:
    """A time as in "5 s", "2 min", "3 h": as exact as an estimate is."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 6_000 else f"{round(seconds / 3_600)} h"


def _has_the_terminal() -> bool:
    """Whether this command is in the foreground. A command in the background (`&`) must not draw where somebody types
    another."""
    with suppress(OSError):
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True


def _columns() -> int:
    with suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS_DEFAULT
    return COLUMNS_DEFAULT


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
