"""A thread that writes log lines, so that a slow reader of the log, or none, cannot hold up the node.

Lines that do not fit into the queue are dropped and counted. The count is written as a line when there is room again.
"""

from __future__ import annotations

import json
import queue
import threading
from typing import TextIO

LINES_MAX = 10_000
"""The number of lines that wait for a slow reader, at most."""
CLOSE_TIMEOUT_S = 2.0
"""The time that the end of the process waits for lines that are not written yet."""


class LogWriter:
    """LogWriter: a text stream for loggers. `write` never blocks and never fails.

    dropped: the lines that were lost and not yet reported.
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
        """Does nothing: the thread writes lines as soon as it can."""

    def close(self) -> None:
        """Write the remaining lines, for CLOSE_TIMEOUT_S at most. Safe to repeat."""
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
        """Count dropped lines. Both the caller of `write` and the writing thread do this."""
        with self._counting:
            self.dropped += lines
