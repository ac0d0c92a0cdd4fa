"""WriteTrials: finds out whether the node would store a push now, by a write that is rolled back.
The last push does not show this: there may have been no push, or the disk may have been full only at that moment."""

from __future__ import annotations

from time import monotonic

import trio

from stream_service.counters import NO_ROOM, StreamCounters
from stream_storage.contract import Do
from stream_storage.errors import StorageClosed
from stream_storage.runner import Runner

FRESH_S = 1.0
"""How long the result of a push or a trial counts."""
CALM_S = 3.0
"""How long the result of a trial counts if the trial has succeeded on a disk. A trial writes four pages there, so a
node without pushes writes some 5 KB in a second, however often it is asked."""
TRIAL_BYTES_MIN = 64 * 1024
"""The smallest trial. SQLite keeps most of it in memory."""
HOLDS_S = 30.0
"""How long a failed push counts if a trial cannot show whether pushes are stored again."""
TRIAL_S_MAX = 2.0
"""The longest wait for a trial. A probe of Kubernetes waits for one second by default."""
LATE = (
    f"the database does not answer: a write has not ended within {TRIAL_S_MAX:g} s; look at the disk or the database "
    "server"
)


class WriteTrials:
    """Tries writes when somebody asks, at most one at a time."""

    def __init__(self, storage: Runner, counters: StreamCounters) -> None:
        self._storage = storage
        self._counters = counters
        self._failure: str | None = None
        self._ended_s = self._known_until_s = float("-inf")
        self._running: trio.Event | None = None
        self._is_late = False

    @property
    def failure(self) -> str | None:
        """The reason why the last push or trial was not stored; None if it was stored.
        A trial that takes longer than TRIAL_S_MAX seconds is a reason, too."""
        if self._is_late:
            return LATE
        is_push_last = max(self._counters.stored_s, self._counters.unstored_s) > self._ended_s
        return self._counters.write_failure if is_push_last else self._failure

    async def settle(self) -> str | None:
        """Returns `failure`. Without a recent push or trial, first waits for a trial, up to TRIAL_S_MAX seconds."""
        ended = self._begin()
        if ended is not None and not self._is_late:
            with trio.move_on_after(TRIAL_S_MAX):
                await ended.wait()
            self._is_late = not ended.is_set()
        return self.failure

    def again(self) -> None:
        """Begins a trial if the last push or trial was not stored, and does not wait for its end. Else does nothing."""
        if self.failure is not None:
            self._begin()

    def _begin(self) -> trio.Event | None:
        """Begins a trial of the size of the last push that was not stored, unless a trial runs. Returns the event that
        the end of the trial sets; None if no trial is needed, or the node stops."""
        known_until_s = max(self._counters.stored_s + FRESH_S, self._known_until_s)
        if monotonic() < known_until_s and max(self._counters.stored_s, self._ended_s) > self._counters.unstored_s:
            return None
        if self._running is None:
            self._running = trio.Event()
            size_bytes = max(TRIAL_BYTES_MIN, self._counters.unstored_bytes)
            try:
                # The trial writes this many bytes and rolls them back. An append would fail with the same error.
                self._storage.submit_write(Do(lambda session: session.try_write(size_bytes), self._end))
            except StorageClosed:
                self._running = None
        return self._running

    def _end(self, trial: Do[bool]) -> None:
        # False if the trial passed on a database where that proves nothing about an append (PostgreSQL).
        tells = trial.error is not None or trial.result
        self._failure = None if trial.error is None else str(trial.error)
        if not tells and monotonic() < self._counters.unstored_s + HOLDS_S:
            self._failure = self._failure or self._counters.write_failure
        if not self._counters.has_room(self._counters.unstored_bytes):
            self._failure = self._failure or NO_ROOM
        self._ended_s, self._is_late = monotonic(), False
        self._known_until_s = self._ended_s + (CALM_S if tells and self._failure is None else FRESH_S)
        assert self._running is not None, "an operation ends after it was submitted"
        self._running.set()
        self._running = None
