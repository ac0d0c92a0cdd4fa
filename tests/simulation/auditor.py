"""What must hold in every run, checked while it happens and against the log at the end."""

from __future__ import annotations

from collections import defaultdict

from storage.contract import Session
from storage.verify import verify


class BrokenPromise(AssertionError):
    """The node did something that it promised not to do."""


class Auditor:
    """Keeps what was confirmed and read, from the clients' side only."""

    def __init__(self) -> None:
        self.confirms: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.read: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
        self.publishing = 0
        self._positions: dict[tuple[str, str], int] = {}

    def confirmed(self, stream: str, index: int, data: bytes) -> None:
        """A confirmed index belongs to one message for ever."""
        known = self.confirms[stream].setdefault(index, data)
        if known != data:
            raise BrokenPromise(f"{stream} index {index} was confirmed for {known!r} and for {data!r}")

    def consumed(self, client: str, stream: str, index: int, data: bytes, asked: int) -> None:
        """Nothing below what was asked, the same data at each reading, and what was confirmed there."""
        if index < asked:
            raise BrokenPromise(f"{stream}: index {index} came for a pull from {asked}")
        for other in (self.read[client, stream].get(index), self.confirms[stream].get(index)):
            if other is not None and other != data:
                raise BrokenPromise(f"{stream} index {index} is {data!r} and was {other!r}")
        self.read[client, stream][index] = data

    def saved_index_seen(self, client: str, stream: str, index: int) -> None:
        """A saved index never goes back."""
        before = self._positions.get((client, stream), 0)
        if index < before:
            raise BrokenPromise(f"{client} on {stream}: saved index {index} after {before}")
        self._positions[client, stream] = index

    def all_read(self, client: str, stream: str) -> bool:
        """Whether this consumer has read everything confirmed, and no more is to come."""
        return not self.publishing and self.confirms[stream].keys() <= self.read[client, stream].keys()

    def check_log(self, session: Session) -> None:
        """At the end: the log is sound, has every confirmed message at its index, and no index twice or missing."""
        report = verify(session)
        if report.problems:
            raise BrokenPromise(f"the database is unsound: {report.problems[0]}")
        for stream, confirms in self.confirms.items():
            record = session.log.find_stream(stream, 0)
            if record is None:
                raise BrokenPromise(f"{stream} is confirmed and not there")
            stored = {row[0]: row[1] for row in session.log.read(record.stream_id, 0, 10**6, 10**9)}
            for index, data in confirms.items():
                if stored.get(index) != data:
                    raise BrokenPromise(f"{stream} index {index}: confirmed {data!r}, stored {stored.get(index)!r}")
