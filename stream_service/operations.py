"""What the stream workers ask of the storage threads. Each runs inside one transaction or on a reading connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.contract import Operation, Record, Session, StreamRecord
from storage.errors import StorageError


class NothingFits(StorageError):
    """The first message of a page is larger than any answer that its asker's framing can carry."""

    def __init__(self, index: int, size_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"the message at index {index} has {size_bytes} bytes and this connection's framing carries at most "
            f"{bytes_max}: use the head framing, or pull from index {index + 1}"
        )


class EnsureStreams(Operation):
    """Make the partitions of a stream that are missing; `records` are all of those asked for, in order."""

    __slots__ = ("created_us", "name", "partitions", "records")

    def __init__(
        self,
        name: str,
        partitions: Sequence[int],
        created_us: int,
        on_done: Callable[[EnsureStreams], None],
    ) -> None:
        super().__init__(on_done)
        self.name = name
        self.partitions = partitions
        self.created_us = created_us
        self.records: list[StreamRecord] = []

    def apply(self, session: Session) -> None:
        ensure_stream = session.log.ensure_stream
        self.records = [ensure_stream(self.name, partition, self.created_us) for partition in self.partitions]


class ReadPages(Operation):
    """The pages of several pulls of one stream: each a start index, a limit and a bound in bytes.

    `pages` has a list of records or the error of that page, in the order of the pulls. It has fewer than there are
    pulls where their data together reached `bytes_max`: the others are to be read later.
    """

    __slots__ = ("bytes_max", "pages", "pulls", "stream_id")

    def __init__(
        self,
        stream_id: int,
        pulls: Sequence[tuple[int, int, int, int]],
        bytes_max: int,
        on_done: Callable[[ReadPages], None],
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.pulls = pulls
        self.bytes_max = bytes_max
        self.pages: list[list[Record] | StorageError] = []

    def apply(self, session: Session) -> None:
        self.pages = []
        bytes_left = self.bytes_max
        for pull in self.pulls:
            page = self._page(session, *pull)
            self.pages.append(page)
            if isinstance(page, list):
                bytes_left -= sum(len(record[1]) for record in page)
            if bytes_left <= 0:
                return

    def _page(
        self, session: Session, index: int, limit: int, bytes_max: int, first_bytes_max: int
    ) -> list[Record] | StorageError:
        read = session.log.read
        try:
            page = read(self.stream_id, index, limit, bytes_max, first_bytes_max=first_bytes_max)
            if page or not limit:
                return page
            first = read(self.stream_id, index, 1, bytes_max)
        except StorageError as error:
            return error
        if first and len(first[0][1]) > first_bytes_max:
            return NothingFits(first[0][0], len(first[0][1]), first_bytes_max)
        return first
