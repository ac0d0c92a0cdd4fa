"""Writes log lines from a thread of its own, so that nobody who reads them slowly, or not at all, can hold up the node.

What does not fit the queue is dropped and counted; the count is written as a line when there is room again.
"""

from __future__ import annotations

import json
import queue
import threading
from typing import TextIO

LINES_MAX = 10_000
"""How many lines wait for a slow reader at most."""
CLOSE_TIMEOUT_S = 2.0
"""How long the end of the process waits for the lines that are left."""


class LogWriter:
    """A text stream for loggers: `write` never blocks and never fails. dropped: lines lost and not yet told."""

    def __init__(self, out: TextIO, lines_max: int = LINES_MAX) -> None:
        self._out = out
        self._lines: queue.Queue[str | None] = queue.Queue(lines_max)
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._counting = threading.Lock()
        self.dropped = 0
        self._thread.start()

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._count(1)
        return len(text)

    def flush(self) -> None:
        """Lines leave as soon as they can; nobody waits for that."""

    def close(self) -> None:
        """Write what is left, for CLOSE_TIMEOUT_S at most. Safe to repeat."""
        try:
            self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            try:
                self._out.write(text)
                dropped = self.dropped
                if dropped:
                    self._count(-dropped)
                    self._out.write(json.dumps({"event": "log_lines_dropped", "count": dropped}) + "\n")
                if self._lines.empty():
                    self._out.flush()
            except (OSError, ValueError):
                self._count(1)

    def _count(self, lines: int) -> None:
        """The owner and the writing thread both count."""
        with self._counting:
            self.dropped += lines
