"""What must hold in every run, checked while it happens and against the log at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from ockam.actors.address import Address
from stream_service.extensions import RichPage
from stream_service.names import stream_address
from stream_service.protocol import PullRequest, PullResponse, StreamMessage
from stream_storage.contract import Session
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import verify
from tests.simulation.arrivals import Arrivals


class BrokenPromise(AssertionError):
    """The node did something that it promised not to do."""


class SeenPage(msgspec.Struct, frozen=True):
    """An answer to a pull. turn: when the first copy of the pull reached the node."""

    stream: str
    turn: int
    asked: int
    full: bool
    indexes: frozenset[int]


class Auditor:
    """Keeps what was confirmed and read, from the clients' side, and what arrived, from the network's.

    stored_once: publishers whose messages are numbered, and stored once however often they arrive.
    once, ordered, seen: how many pushes that arrived more than once were stored once; how many were checked to lie in
    the order of their arrival, and to be in a page that had to have them.
    """

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.confirms: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.read: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
        self.publishing = 0
        self.stored_once: set[str] = set()
        self.once = 0
        self.ordered = 0
        self.seen = 0
        self._pages: list[SeenPage] = []
        self._positions: dict[tuple[str, str], int] = {}

    def confirmed(self, stream: str, index: int, data: bytes) -> None:
        """A confirmed index belongs to one message for ever."""
        known = self.confirms[stream].setdefault(index, data)
        if known != data:
            raise BrokenPromise(f"{stream} index {index} was confirmed for {known!r} and for {data!r}")

    def pulled(self, client: str, address: Address, stream: str, pull: PullRequest, page: PullResponse) -> None:
        """No more than was asked, nothing below it, no holes, the same data each time, and what was confirmed there."""
        indexes = [message.index for message in page.messages]
        if len(indexes) > pull.limit:
            raise BrokenPromise(f"{stream}: {len(indexes)} messages came for a pull of {pull.limit}")
        if indexes and indexes[0] < pull.index:
            raise BrokenPromise(f"{stream}: index {indexes[0]} came for a pull from {pull.index}")
        if any(later != earlier + 1 for earlier, later in pairwise(indexes)):
            raise BrokenPromise(f"{stream}: a page has the indexes {indexes}")
        for message in page.messages:
            self._read(client, stream, message.index, message.data)
        turn = self.arrivals.pulls[address, pull.request_id]
        self._pages.append(SeenPage(stream, turn, pull.index, len(indexes) == pull.limit, frozenset(indexes)))

    def pulled_rich(self, client: str, address: Address, stream: str, pull: PullRequest, page: RichPage) -> None:
        """The same of a page of our own protocol; and it goes on where it ended, with what was confirmed before it."""
        messages = [StreamMessage(message.index, message.data) for message in page.messages]
        self.pulled(client, address, stream, pull, PullResponse(pull.request_id, messages))
        end = messages[-1].index + 1 if messages else max(pull.index, page.first_index)
        if (page.resume_index, page.next_index >= end) != (end, True):
            raise BrokenPromise(f"{stream}: a page that ends before {end} goes on at {page.resume_index}")

    def _read(self, client: str, stream: str, index: int, data: bytes) -> None:
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
        """At the end: the log is sound, and keeps every promise about what was confirmed, what arrived, what was read.

        1. Every confirmed message is at its index.
        2. A message is stored at most as often as it arrived, once where it is numbered, and nothing that did not.
        3. Messages that arrived once lie in the order in which they arrived.
        4. A pull saw every such message that arrived before it.
        """
        if isinstance(session, SqliteSession):
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
            self._check_copies(stream, stored)
            turns = self._check_order(stream, stored)
            self._check_pages(stream, turns)

    def _check_copies(self, stream: str, stored: Mapping[int, bytes]) -> None:
        for data, copies in Counter(stored.values()).items():
            arrived = self.arrivals.copies(stream_address(stream, 0), data)
            if copies > arrived:
                raise BrokenPromise(f"{stream}: {data!r} arrived {arrived} times and is stored {copies} times")
            if data.partition(b":")[0].decode() in self.stored_once:
                if copies > 1:
                    raise BrokenPromise(f"{stream}: {data!r} is numbered and stored {copies} times")
                self.once += arrived > 1

    def _check_order(self, stream: str, stored: Mapping[int, bytes]) -> dict[int, int]:
        """Index to turn, of the messages that arrived once."""
        found = {index: self.arrivals.find_only_turn(stream_address(stream, 0), stored[index]) for index in stored}
        turns = {index: turn for index, turn in sorted(found.items()) if turn is not None}
        for (earlier, turn), (later, later_turn) in pairwise(turns.items()):
            if later_turn < turn:
                raise BrokenPromise(f"{stream}: {stored[later]!r} at {later} came before {stored[earlier]!r}")
        self.ordered += len(turns)
        return turns

    def _check_pages(self, stream: str, turns: Mapping[int, int]) -> None:
        for page in (page for page in self._pages if page.stream == stream):
            end = max(page.indexes) + 1 if page.full and page.indexes else None
            due = {
                index
                for index, turn in turns.items()
                if turn < page.turn and index >= page.asked and (end is None or index < end)
            }
            if not due <= page.indexes:
                raise BrokenPromise(
                    f"{stream}: a pull from {page.asked} did not see index {min(due - page.indexes)}, pushed before it"
                )
            self.seen += len(due)
