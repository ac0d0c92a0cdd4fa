"""Merge: a queue of the readers whose next page has arrived."""

from __future__ import annotations

from collections import deque

from stream_client.consume.reader import Reader
from stream_client.core.pushes import PendingResult


class Merge:
    """A queue of the readers whose next page has arrived, in the order of arrival. A reader is in it at most once, so a
    partition with many messages cannot delay the others."""

    def __init__(self) -> None:
        self._ready: deque[Reader] = deque()
        self._signal = PendingResult()

    def arrived(self, reader: Reader) -> None:
        """Records that a page of this reader has arrived. It is the `on_page` of the Reader."""
        self._ready.append(reader)
        self.wake()

    def wake(self) -> None:
        """Finishes the last `arrival`, even if no page has arrived."""
        self._signal.finish()

    def drop(self, reader: Reader) -> None:
        reader.stop()
        if reader in self._ready:
            self._ready.remove(reader)

    def arrival(self) -> PendingResult:
        """Returns a result to wait for: it is finished when a reader's page has arrived, and by `wake`."""
        self._signal = PendingResult()
        if self._ready:
            self._signal.finish()
        return self._signal

    def next_nowait(self) -> Reader | None:
        """Returns the reader whose page arrived first; None if none has arrived."""
        return self._ready.popleft() if self._ready else None
