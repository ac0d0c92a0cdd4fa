"""Writes log lines in a thread, so that the node never waits for the reader of the log.

Lines that do not fit into the queue are dropped and counted. The count is written as a log line when there is
room again.
"""

from __future__ import annotations

import json
import queue
import threading
from typing import TextIO

LINES_MAX = 10_000
"""The maximum number of lines that wait in the queue for a slow reader."""
CLOSE_TIMEOUT_S = 2.0
"""The longest wait for unwritten lines at the end of the process, in seconds."""


class LogWriter:
    """A text stream for loggers. Its method `write` never blocks and never fails.

    out: the stream that the thread writes to.
    dropped: the number of lines that were dropped and are not reported yet.
    """

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
        """Does nothing: the thread writes the lines as soon as it can."""

    def close(self) -> None:
        """Writes the remaining lines. Waits at most CLOSE_TIMEOUT_S seconds for room in the queue, and then at most as
        long for the writes. Safe to repeat."""
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
        """Adds to the number of dropped lines. It takes a lock, because the callers of `write` and the writing thread
        both call it."""
        with self._counting:
            self.dropped += lines
