"""Histories of streams: by them, two copies of a stream find out up to which index they agree.

A history is a list of entries, oldest first. An entry has a random id and the index from which on it holds. A stream
gets an entry when it is made, when a mirror of it becomes a primary, and when a backup of it is restored: from then on,
another copy of the stream can go on with other messages. A copy takes over the entries of its source. So two copies
have the same messages up to the first index at which their histories part. A stream of an older version has no entry
until its history is asked for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from sqlalchemy import BigInteger, Column, Integer, Table, select
from sqlalchemy.schema import CreateTable

from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, corrupt_text
from stream_storage.schema import metadata
from stream_storage.seal import SealedRows, seal_column
from stream_storage.statement import compiled

ENTRIES_MAX = 1_000
"""The largest number of entries of one history. A stream that gets more forgets its oldest entry."""
ENTRY_ID_MAX = 2**63 - 1
"""The largest id of an entry: the largest integer of SQLite and PostgreSQL."""
DAMAGED = "the history of stream {} is not what was written"


class HistoryEntry(msgspec.Struct, frozen=True):
    """One entry of the history of a stream."""

    entry_id: int  # a random number from 1 to ENTRY_ID_MAX
    first_index: int  # from this index on, a copy without this entry can have other messages


History: TypeAlias = tuple[HistoryEntry, ...]
"""The entries of a stream's history, oldest first. The indexes never decrease."""

histories = Table(
    "stream_histories",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("entry_id", BigInteger, nullable=False),
    Column("first_index", BigInteger, nullable=False),
    seal_column(),
    sqlite_with_rowid=False,
)
"""The table of entries. `place` counts the entries of a stream from 0, oldest first."""


class _HistoryRow(msgspec.Struct, frozen=True):
    stream_id: int
    place: int
    entry_id: int
    first_index: int


_rows = SealedRows(histories, _HistoryRow, DAMAGED)
_STREAMS = compiled(select(histories.c.stream_id).distinct())
_CREATE_TABLE = compiled(CreateTable(histories, if_not_exists=True))


def random_entry_id() -> int:
    return secrets.randbelow(ENTRY_ID_MAX) + 1


def list_history(session: Session, stream_id: int) -> History:
    """Returns the history of a stream; empty if it has none yet. Raises DatabaseCorrupt if a row is damaged."""
    rows = _rows.of(session, stream_id)
    if [row.place for row in rows] != list(range(len(rows))):
        raise DatabaseCorrupt(corrupt_text(DAMAGED.format(stream_id)))
    return tuple(HistoryEntry(row.entry_id, row.first_index) for row in rows)


def set_history(session: Session, stream_id: int, history: Sequence[HistoryEntry]) -> None:
    entries = enumerate(history[-ENTRIES_MAX:])
    rows = (_HistoryRow(stream_id, place, each.entry_id, each.first_index) for place, each in entries)
    _rows.write(session, stream_id, rows)


def ensure_history(session: Session, stream_id: int, new_id: Callable[[], int] = random_entry_id) -> History:
    """Returns the history of a stream, inside a transaction. A stream without one gets an entry from index 0 on."""
    found = list_history(session, stream_id)
    if not found:
        found = (HistoryEntry(new_id(), 0),)
        set_history(session, stream_id, found)
    return found


def begin_entry(session: Session, stream_id: int, entry_id: int) -> History:
    """Adds an entry from the next index of the stream on, and returns the whole history: from now on the messages of
    this copy can differ from those of all others. Call it inside a transaction. Raises UnknownStreamId."""
    end = session.log.get_stream(stream_id).next_index
    # A mirror can have entries of its source that begin beyond its own end: it has no messages of these entries.
    known = tuple(entry for entry in list_history(session, stream_id) if entry.first_index <= end)
    if not known and end:
        known = ensure_history(session, stream_id)
    history = (*known, HistoryEntry(entry_id, end))[-ENTRIES_MAX:]
    set_history(session, stream_id, history)
    return history


def begin_entries(session: Session, new_id: Callable[[], int] = random_entry_id) -> None:
    """Adds an entry to every history, inside a transaction, after a backup was restored or a database repaired. A
    stream without a history needs none: nobody can have copied it by its history."""
    # The table may be missing in a database of an older version.
    session.execute(_CREATE_TABLE)
    for (stream_id,) in session.execute(_STREAMS).fetchall():
        begin_entry(session, stream_id, new_id())


def forget_history(session: Session, stream_id: int) -> None:
    _rows.forget(session, stream_id)


def find_parting(ours: Sequence[HistoryEntry], theirs: Sequence[HistoryEntry]) -> int | None:
    """Returns the first index at which two copies of a stream can differ, by their histories; None if both end with the
    same entry, 0 if they share no entry."""
    places = {entry.entry_id: place for place, entry in enumerate(theirs)}
    for place in reversed(range(len(ours))):
        there = places.get(ours[place].entry_id)
        if there is not None:
            # The newest entry that both have. It ends where the next entry of either copy begins.
            ends = [
                entries[at + 1].first_index for entries, at in ((ours, place), (theirs, there)) if at + 1 < len(entries)
            ]
            return min(ends, default=None)
    return 0


def shared_history(ours: Sequence[HistoryEntry], theirs: Sequence[HistoryEntry]) -> History:
    """Returns the entries of `ours` up to the newest one that is also in `theirs`."""
    known = {entry.entry_id for entry in theirs}
    newest = max((place for place, entry in enumerate(ours) if entry.entry_id in known), default=-1)
    return tuple(ours[: newest + 1])
