"""WriteTrials: finds out whether the node would store a push now, by a write that is taken back.

The last push does not tell it: perhaps there was none, or the disk was full only then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from storage.contract import Operation, Session
from storage.errors import StorageClosed
from storage.runner import Runner
from stream_service.counters import StreamCounters

FRESH_S = 1.0
"""For this long, a stored push, or a trial that has ended, tells whether pushes are stored."""
TRIAL_BYTES_MIN = 256 * 1024
"""The smallest trial. A push of a few messages may fit into the rest of a file when hardly another one does."""
HOLDS_S = 30.0
"""For this long, a failed push tells that pushes fail where no trial can tell it."""


class WriteTrial(Operation):
    """An operation that writes this many bytes and takes them back. Its `error` is why an append would fail. tells:
    whether it tells that an append would not fail."""

    __slots__ = ("size_bytes", "tells")

    def __init__(self, size_bytes: int, on_done: Callable[[Any], None]) -> None:
        super().__init__(on_done)
        self.size_bytes = size_bytes
        self.tells = True

    def apply(self, session: Session) -> None:
        self.tells = session.try_write(self.size_bytes)


class WriteTrials:
    """Tries writes when somebody asks, at most one at a time."""

    def __init__(self, storage: Runner, counters: StreamCounters) -> None:
        self._storage = storage
        self._counters = counters
        self._failure: str | None = None
        self._ended_s = float("-inf")
        self._waiting: list[Callable[[], None]] = []

    @property
    def failure(self) -> str | None:
        """Why pushes are not stored: the reason of the last push or trial, whichever ended later; None if it
        succeeded."""
        is_push_last = max(self._counters.stored_s, self._counters.unstored_s) > self._ended_s
        return self._counters.write_failure if is_push_last else self._failure

    def begin(self, on_done: Callable[[], None]) -> None:
        """Calls `on_done` when `failure` is up to date: at once after a push or a trial that has just ended, else after
        a trial. It is as large as the last push that was not stored. Raises StorageClosed.
        """
        known_s = max(self._counters.stored_s, self._ended_s)
        if monotonic() < known_s + FRESH_S and known_s > self._counters.unstored_s:
            on_done()
            return
        if not self._waiting:
            size_bytes = max(TRIAL_BYTES_MIN, self._counters.unstored_bytes)
            self._storage.submit_write(WriteTrial(size_bytes, self._end))
        self._waiting.append(on_done)

    def again(self) -> None:
        """Tries a write if the last one failed: without this, nobody would notice that pushes are stored again until
        somebody pushes. While nothing has failed, it writes nothing."""
        if self.failure is not None:
            with suppress(StorageClosed):
                self.begin(lambda: None)

    def _end(self, trial: WriteTrial) -> None:
        self._failure = None if trial.error is None else str(trial.error)
        if not trial.tells and monotonic() < self._counters.unstored_s + HOLDS_S:
            self._failure = self._failure or self._counters.write_failure
        self._ended_s = monotonic()
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            on_done()
