"""A database in memory, for tests: the interfaces of `stream_storage.contract` without a disk, for one thread.

A committed state is never changed: a transaction works on a copy, and the commit replaces the committed state. The
copies share the lists of messages, of which a transaction changes only the end, after the committed messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Table

from stream_storage.contract import Append, Record, StreamRecord
from stream_storage.errors import IndexConflict, NodeReplaced, StorageError, StorageReadOnly, UnknownStreamId
from stream_storage.sqlite.errors import caused_error, mapped
from stream_storage.sqlite.rows import SqliteRows, execute
from stream_storage.sqlite.schema import create_statements
from stream_storage.statement import Values


class _Stream(NamedTuple):
    """One stream: rows[i] has the index offset + i. A rollback leaves rows at or beyond the next index, which do not
    count."""

    record: StreamRecord
    rows: list[Record]
    offset: int


class _State:
    def __init__(self, streams: dict[int, _Stream], ids: dict[tuple[str, int], int], last_id: int) -> None:
        self.streams = streams
        self.ids = ids
        self.last_id = last_id

    def copy(self) -> _State:
        return _State(dict(self.streams), dict(self.ids), self.last_id)


class MemoryDatabase:
    """A `contract.SessionSource` in memory. The tables of other packages are in one SQLite database, whose connection
    all sessions share: there, unlike in the log, readers see changes before they are committed."""

    def __init__(self, further_tables: Sequence[Table] = ()) -> None:
        self.committed = _State({}, {}, 0)
        self.fenced: set[str] = set()
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in create_statements(further_tables):
            self.connection.execute(statement)
        self._writer: MemorySession | None = None

    def session(self) -> MemorySession:
        assert self._writer is None or self._writer.closed, "one session that writes is open already"
        self._writer = MemorySession(self, writes=True)
        return self._writer

    def read_session(self) -> MemorySession:
        return MemorySession(self, writes=False)

    def close(self) -> None:
        self.connection.close()


class SharedMemoryDatabase:
    """The database in memory as one member of a cluster has it, whom others fence by the text `owner`."""

    def __init__(self, database: MemoryDatabase, owner: str) -> None:
        self.owner = owner
        self._database = database

    def session(self) -> MemorySession:
        return MemorySession(self._database, writes=True, owner=self.owner)

    def read_session(self) -> MemorySession:
        return self._database.read_session()


class MemorySession:
    """A session of the database in memory: a `stream_storage.contract.Session`."""

    def __init__(self, database: MemoryDatabase, *, writes: bool, owner: str = "") -> None:
        self.log = MemoryLog(self)
        self.writes = writes
        self.closed = False
        self._database = database
        self._owner = owner
        self._working: _State | None = None
        self._parts: list[_State] = []

    @property
    def connection(self) -> sqlite3.Connection:
        return self._database.connection

    @property
    def in_transaction(self) -> bool:
        return self._working is not None

    def execute(self, statement: str, values: Values = ()) -> SqliteRows:
        return execute(self.connection, statement, values)

    @mapped()
    def execute_many(self, statement: str, values: Iterable[Values]) -> None:
        self.connection.executemany(statement, values)

    @mapped()
    def find_many(self, statement: str, values: Sequence[Values]) -> list[Any]:
        return [self.connection.execute(statement, each).fetchone() for each in values]

    def error_of(self, raised: BaseException) -> StorageError:
        return caused_error(raised)

    def begin(self, *, deferred: bool = False) -> None:
        assert self._working is None, "transactions do not nest"
        if self._owner in self._database.fenced:
            raise NodeReplaced
        self._working = self._database.committed
        if self.writes:
            self._working = self._working.copy()
            self.connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        assert self._working is not None, "there is no transaction"
        if self.writes:
            self.connection.execute("COMMIT")
            self._database.committed = self._working
        self._working = None
        self._parts.clear()

    def rollback(self) -> None:
        if self._working is not None and self.writes:
            self.connection.execute("ROLLBACK")
        self._working = None
        self._parts.clear()

    def try_write(self, size_bytes: int) -> bool:
        return True

    def reclaim(self, pages: int, keep: int) -> int:
        return 0

    def fence(self, owner: str) -> bool:
        if owner in self._database.fenced:
            return False
        # The transaction cannot fail any more: members have no transactions at the same time.
        self._database.fenced.add(owner)
        return True

    def disconnect(self, owner: str) -> None:
        pass

    def recover(self, error: StorageError) -> bool:
        return False

    def settle(self, error: StorageError) -> bool | StorageError:
        return error if error.fatal else False

    def savepoint(self) -> None:
        self._parts.append(self.writable().copy())
        self.connection.execute("SAVEPOINT part")

    def release(self) -> None:
        self._parts.pop()
        self.connection.execute("RELEASE part")

    def rollback_to(self) -> None:
        self._working = self._parts.pop()
        self.connection.execute("ROLLBACK TO part")
        self.connection.execute("RELEASE part")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.rollback()

    def visible(self) -> _State:
        """Returns the state of the open transaction, or without one, the committed state."""
        return self._database.committed if self._working is None else self._working

    def writable(self) -> _State:
        """Returns the state of the open transaction, which the caller can change."""
        if not self.writes:
            raise StorageReadOnly("this session only reads; write in the session that writes")
        assert self._working is not None, "writing needs a transaction"
        return self._working


class MemoryLog:
    """The log in memory, used through one session: a `stream_storage.contract.Log`."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session

    def ensure_stream(self, name: str, partition: int, created_us: int) -> StreamRecord:
        state = self._session.writable()
        found = self.find_stream(name, partition)
        if found is not None:
            return found
        state.last_id += 1
        record = StreamRecord(state.last_id, name, partition, 0, 0, 0, created_us)
        state.streams[record.stream_id] = _Stream(record, [], 0)
        state.ids[name, partition] = record.stream_id
        return record

    def append(self, appends: Sequence[Append]) -> None:
        state = self._session.writable()
        for append in appends:
            record, rows, offset = _get(state, append.stream_id)
            if append.first_index != record.next_index:
                raise IndexConflict(append.stream_id, record.next_index, append.first_index)
            nothing: list[bytes | None] = [None] * len(append.data)
            columns = zip(append.data, append.keys or nothing, append.headers or nothing, strict=True)
            del rows[record.next_index - offset :]
            rows += [
                (index, data, append.time_us, key, headers)
                for index, (data, key, headers) in enumerate(columns, append.first_index)
            ]
            grown = msgspec.structs.replace(
                record,
                next_index=record.next_index + len(append.data),
                size_bytes=record.size_bytes + sum(map(len, append.data)),
            )
            state.streams[append.stream_id] = _Stream(grown, rows, offset)

    def begin_at(self, stream_id: int, index: int) -> None:
        state = self._session.writable()
        record = _get(state, stream_id).record
        if record.next_index:
            raise IndexConflict(stream_id, record.next_index, index)
        moved = msgspec.structs.replace(record, first_index=index, next_index=index)
        state.streams[stream_id] = _Stream(moved, [], index)

    def skip_to(self, stream_id: int, index: int) -> None:
        state = self._session.writable()
        record = _get(state, stream_id).record
        if record.first_index != record.next_index or index < record.next_index:
            raise IndexConflict(stream_id, record.next_index, index)
        moved = msgspec.structs.replace(record, first_index=index, next_index=index)
        state.streams[stream_id] = _Stream(moved, [], index)

    def cut_from(self, stream_id: int, index: int) -> int:
        state = self._session.writable()
        record, rows, offset = _get(state, stream_id)
        if index >= record.next_index:
            return 0
        first = min(record.first_index, index)
        stored = rows[record.first_index - offset : record.next_index - offset]
        # The list is shared with earlier states, which still have the messages: this state gets a list of its own.
        kept = [row for row in stored if row[0] < index]
        size_bytes = sum(len(row[1]) for row in kept)
        cut = msgspec.structs.replace(record, first_index=first, next_index=index, size_bytes=size_bytes)
        state.streams[stream_id] = _Stream(cut, kept, first)
        return len(stored) - len(kept)

    def truncate_before(self, stream_id: int, index: int) -> int:
        state = self._session.writable()
        record, rows, offset = _get(state, stream_id)
        end = min(index, record.next_index)
        if end <= record.first_index:
            return 0
        deleted = rows[record.first_index - offset : end - offset]
        kept = rows[end - offset : record.next_index - offset]
        shortened = msgspec.structs.replace(
            record, first_index=end, size_bytes=record.size_bytes - sum(len(row[1]) for row in deleted)
        )
        state.streams[stream_id] = _Stream(shortened, kept, end)
        return len(deleted)

    def delete_stream(self, stream_id: int) -> None:
        state = self._session.writable()
        record = _get(state, stream_id).record
        del state.streams[stream_id], state.ids[record.name, record.partition]

    def find_stream(self, name: str, partition: int) -> StreamRecord | None:
        state = self._session.visible()
        stream_id = state.ids.get((name, partition))
        return None if stream_id is None else state.streams[stream_id].record

    def get_stream(self, stream_id: int) -> StreamRecord:
        return _get(self._session.visible(), stream_id).record

    def list_streams(
        self, prefix: str = "", after: tuple[str, int] | None = None, limit: int = 1000
    ) -> list[StreamRecord]:
        state = self._session.visible()
        wanted = [key for key in state.ids if key[0].startswith(prefix) and (after is None or key > after)]
        return [state.streams[state.ids[key]].record for key in sorted(wanted)[:limit]]

    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        record, rows, offset = _get(self._session.visible(), stream_id)
        start = max(index, record.first_index)
        page: list[Record] = []
        room_bytes = bytes_max
        for row in rows[start - offset : min(start + limit, record.next_index) - offset]:
            room_bytes -= len(row[1])
            if page and room_bytes < 0:
                break
            if not page and first_bytes_max is not None and len(row[1]) > first_bytes_max:
                break
            page.append(row)
        return page

    def find_fitting(self, stream_id: int, index: int, bytes_max: int) -> int | None:
        record, rows, offset = _get(self._session.visible(), stream_id)
        start = max(index, record.first_index)
        visible = rows[start - offset : record.next_index - offset]
        return next((row[0] for row in visible if len(row[1]) <= bytes_max), None)


def _get(state: _State, stream_id: int) -> _Stream:
    found = state.streams.get(stream_id)
    if found is None:
        raise UnknownStreamId(stream_id)
    return found
