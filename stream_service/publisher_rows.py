"""The table of publishers, for publishers whose messages a stream may not have any more, and the storage operations on
its rows.

It keeps the last sequence number of a publisher whose messages are deleted, or are so old that a start does not read
them. If the node has access rules, it also keeps the identity that used a publisher id first.

One row of each stream is a mark. The rows are exact (they have the last number of each publisher) for all messages
before the index of the mark. Without a mark, they are exact for the messages before the first stored message. Functions
that write are called inside a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
import structlog
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, String, Table, bindparam, select

from stream_service.limits import PUBLISHER_ID_BYTES_MAX
from stream_service.stored import list_sequences, note_fall
from stream_storage.contract import Append, Session, StreamRecord
from stream_storage.schema import metadata
from stream_storage.seal import is_sealed, seal_column, seal_of
from stream_storage.statement import compiled, replacing, sql

PUBLISHERS_MAX = 10_000
"""The number of publishers that a stream remembers. Publishers with the oldest messages are forgotten first."""
FORGET_S = 30 * 24 * 3600
"""The time after which a publisher is forgotten, in seconds since its row was last written."""
LOADED_MAX = 100_000
"""The number of latest messages that are searched for sequence numbers, where the rows are not exact."""
MARK: Final = bytes(PUBLISHER_ID_BYTES_MAX + 1)
"""The key of the mark. It is longer than the id of a publisher can be."""

logger = structlog.get_logger(__name__)


class Times(NamedTuple):
    """Two times, in microseconds since 1970. now_us: the present. forget_us: rows written before it are deleted."""

    now_us: int
    forget_us: int


class PublisherRow(msgspec.Struct, frozen=True):
    """The stored state of one publisher of a stream."""

    owner: str  # the identity that the publisher id belongs to; empty if no rules were in force
    sequence: int | None  # the publisher's last number; None if only the owner is known, and for the mark
    index: int  # the index of the message with this number; for the mark, the index before which the rows are exact


publishers = Table(
    "stream_publishers",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("publisher_id", LargeBinary, primary_key=True),
    Column("owner", String, nullable=False),
    Column("sequence", BigInteger),
    Column("idx", BigInteger, nullable=False),
    Column("noted_us", BigInteger, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)
"""`noted_us` is the time at which the row was written, in microseconds since 1970."""

_COLUMNS = tuple(column.name for column in publishers.columns)[:-1]
_of_stream = publishers.c.stream_id == bindparam("stream_id")
_of_publisher = publishers.c.publisher_id == bindparam("publisher_id")
_LIST = compiled(select(*publishers.columns).where(_of_stream), "stream_id")
_FIND = compiled(select(*publishers.columns).where(_of_stream, _of_publisher), "stream_id", "publisher_id")
_WRITE = replacing(publishers, "stream_id", "publisher_id")
_AGES = sql("SELECT publisher_id, idx, noted_us FROM stream_publishers WHERE stream_id = :stream_id")
_DELETE = sql("DELETE FROM stream_publishers WHERE stream_id = :stream_id")
_DELETE_ONE = sql("DELETE FROM stream_publishers WHERE stream_id = :stream_id AND publisher_id = :publisher_id")
_DELETE_FROM = sql("DELETE FROM stream_publishers WHERE stream_id = :stream_id AND idx >= :index")


def list_publishers(session: Session, stream_id: int) -> dict[bytes, PublisherRow]:
    """Returns all rows of a stream by publisher id, including the mark, sorted by index.

    Damaged rows are left out. Then the mark is left out, too, so that the numbers are read again from the messages.
    """
    rows = [_checked(row) for row in session.execute(_LIST, (stream_id,)).fetchall()]
    found = dict(sorted((each for each in rows if each is not None), key=lambda each: each[1].index))
    if damaged := rows.count(None):
        logger.error("publishers_damaged", stream_id=stream_id, rows=damaged, do="run `stream-node verify`")
        found.pop(MARK, None)
    return found


def find_mark(session: Session, stream_id: int) -> PublisherRow | None:
    """Returns the row of the mark; None if it is missing or damaged."""
    row = session.execute(_FIND, (stream_id, MARK)).fetchone()
    found = None if row is None else _checked(row)
    return None if found is None else found[1]


def write_publishers(session: Session, stream_id: int, rows: Mapping[bytes, PublisherRow | None], now_us: int) -> None:
    """Writes rows by publisher id, in place of the earlier ones. None deletes a row."""
    values = [
        (stream_id, publisher_id, row.owner, row.sequence, row.index, now_us)
        for publisher_id, row in rows.items()
        if row is not None
    ]
    session.execute_many(_WRITE, [(*each, seal_of(publishers.name, each)) for each in values])
    session.execute_many(_DELETE_ONE, [(stream_id, each) for each, row in rows.items() if row is None])


def note_messages(session: Session, record: StreamRecord, end: int, now_us: int) -> bool:
    """Writes the rows that are not exact yet for the messages before `end`. Returns whether it wrote any."""
    begin = exact_before(record, find_mark(session, record.stream_id))
    if begin >= end:
        return False
    found = list_sequences(session, record.stream_id, begin, end)
    last = {publisher_id: PublisherRow("", sequence, index) for publisher_id, sequence, index in found}
    # The ids stay with the identities that they belong to.
    for row in session.find_many(_FIND, [(record.stream_id, each) for each in last]):
        if row is not None and (checked := _checked(row)) is not None:
            publisher_id, known = checked
            last[publisher_id] = msgspec.structs.replace(last[publisher_id], owner=known.owner)
    write_publishers(session, record.stream_id, last, now_us)
    return bool(last)


def exact_before(record: StreamRecord, mark: PublisherRow | None) -> int:
    """Returns the index before which the rows of a stream are exact."""
    return record.first_index if mark is None else max(mark.index, record.first_index)


def forget_old(session: Session, stream_id: int, end: int, forget_us: int) -> None:
    """Deletes the rows above PUBLISHERS_MAX, and those written before `forget_us`.

    Rows of publishers with a message at `end` or above stay: a start reads these messages, and their publishers need
    rows.
    """
    ages = session.execute(_AGES, (stream_id,)).fetchall()
    rows = sorted((index, noted_us, bytes(each)) for each, index, noted_us in ages if index < end and each != MARK)
    beyond = len(ages) - PUBLISHERS_MAX
    forgotten = [each for at, (_, noted_us, each) in enumerate(rows) if at < beyond or noted_us < forget_us]
    session.execute_many(_DELETE_ONE, [(stream_id, each) for each in forgotten])


def cut_publishers(session: Session, stream_id: int, index: int) -> None:
    """Deletes the rows of publishers whose last messages were at this index or above: these messages were cut."""
    session.execute(_DELETE_FROM, (stream_id, index))


def forget_publishers(session: Session, stream_id: int) -> None:
    session.execute(_DELETE, (stream_id,))


class KnownSequences(NamedTuple):
    """The stored rows of a stream's publishers, and the sequence numbers of the messages behind the mark."""

    rows: dict[bytes, PublisherRow]  # by publisher id, and the row of the mark, oldest message first
    begin: int  # from where messages were searched: the mark, or LOADED_MAX before the end
    is_exact: bool  # whether each row has the last number before `begin`; if not, only owners count
    found: list[tuple[bytes, int, int]]  # publisher id, sequence number and index of each, oldest first


def load_sequences(session: Session, stream_id: int) -> KnownSequences:
    record, rows = session.log.get_stream(stream_id), list_publishers(session, stream_id)
    exact, least = exact_before(record, rows.get(MARK)), record.next_index - LOADED_MAX
    begin = max(exact, least)
    found = list_sequences(session, stream_id, begin, record.next_index)
    return KnownSequences(rows, begin, exact >= least, found)


def note_publishers(
    session: Session,
    stream_id: int,
    end: int,
    rows: Mapping[bytes, PublisherRow | None] | None,
    times: Times,
    *,
    makes_mark: bool = False,
) -> bool:
    """Writes the rows of publishers whose last messages are before `end`, and sets the mark there. Returns True if the
    stream has no mark and needs none: none of its publishers has numbered its messages.

    rows: the rows that have changed since the mark. None: they are read from the messages behind the mark, if these are
    at most LOADED_MAX. For a stream without a mark, they are read only if `makes_mark` is set.
    """
    mark = find_mark(session, stream_id)
    if rows is None and mark is None and not makes_mark:
        return True
    if mark is not None and mark.index >= end:
        return False
    if rows is not None:
        write_publishers(session, stream_id, rows, times.now_us)
    else:
        record = session.log.get_stream(stream_id)
        if end - exact_before(record, mark) > LOADED_MAX:
            return False
        note_messages(session, record, end, times.now_us)
    write_publishers(session, stream_id, {MARK: PublisherRow("", None, end)}, times.now_us)
    forget_old(session, stream_id, end, times.forget_us)
    return False


class NotedAppend(Append):
    """An append that writes further rows in its transaction.

    falls: whether its time is lower than that of the previous message, so that its first index goes to `time_falls`.
    publishers: the rows to write, see `PublisherSequences.notes`.
    """

    __slots__ = ("falls", "publishers")

    def __init__(
        self, *append: Any, falls: bool, publishers: Mapping[bytes, PublisherRow], on_done: Callable[[Any], None]
    ) -> None:
        """append: the other arguments of an Append."""
        super().__init__(*append, on_done=on_done)
        self.falls = falls
        self.publishers = publishers

    def apply(self, session: Session) -> None:
        if self.falls:
            note_fall(session, self.stream_id, self.first_index)
        write_publishers(session, self.stream_id, self.publishers, self.time_us)
        session.log.append((self,))

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        for operation in operations:
            operation.apply(session)


def _checked(row: Iterable[object]) -> tuple[bytes, PublisherRow] | None:
    """Returns a stored row. Returns None for a damaged row: it must not stop the pushes of a stream."""
    values = [bytes(each) if isinstance(each, memoryview) else each for each in row]
    if not is_sealed(publishers.name, _COLUMNS, values):
        return None
    _, publisher_id, owner, sequence, index, _, _ = values
    found = {"owner": owner, "sequence": sequence, "index": index}
    return msgspec.convert(publisher_id, bytes), msgspec.convert(found, PublisherRow)
