"""Writes log lines in a thread, so that the node never waits for the reader of the log.
Lines that do not fit into the queue are dropped and counted. The count becomes a log line when there is room again."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from typing import TextIO

LINES_MAX = 10_000
WRITE_TIMEOUT_S = 2.0
writer_of_process: LogWriter | None = None
"""The writer of the log of this process. None until `stream_node.node.logs.configure_logs` makes it."""


def write_waiting_lines() -> None:
    """Waits until the log of this process is written, at most two times WRITE_TIMEOUT_S seconds.
    A command calls this before it prints a line on stderr, so that the line follows the log lines before it."""
    if writer_of_process is not None:
        writer_of_process.wait()


class LogWriter:
    """A text stream whose `write` never blocks and never fails. dropped: the number of unreported dropped lines."""

    def __init__(self, out: TextIO, lines_max: int = LINES_MAX) -> None:
        self._out = out
        self._lines: queue.Queue[str | threading.Event | None] = queue.Queue(lines_max)
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

    def wait(self) -> None:
        """Waits for the writing of the lines so far: at most WRITE_TIMEOUT_S for room, and as long for the writes."""
        if not self._thread.is_alive():
            return
        written = threading.Event()
        try:
            self._lines.put(written, timeout=WRITE_TIMEOUT_S)
        except queue.Full:
            return
        written.wait(WRITE_TIMEOUT_S)

    def close(self) -> None:
        """Writes the remaining lines, and ends the thread. Waits as long as `wait` does. Safe to repeat."""
        try:
            self._lines.put(None, timeout=WRITE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(WRITE_TIMEOUT_S)

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            # An event in the queue asks for a flush: everything before it is written then.
            if isinstance(text, threading.Event):
                with contextlib.suppress(OSError, ValueError):
                    self._out.flush()
                text.set()
                continue
            try:
                self._out.write(text)
                # If lines were dropped, their number is written now that there is room again.
                dropped = self.dropped
                if dropped:
                    self._count(-dropped)
                    self._out.write(json.dumps({"event": "log_lines_dropped", "count": dropped}) + "\n")
                if self._lines.empty():
                    self._out.flush()
            except (OSError, ValueError):
                self._count(1)

    def _count(self, lines: int) -> None:
        """Adds to the number of dropped lines. Writers and the writing thread both call it, so it takes a lock."""
        with self._counting:
            self.dropped += lines
