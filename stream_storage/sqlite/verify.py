"""Verifies a whole database: the file, the schema, every stream, every message and every seal. It repairs nothing.

It reads one snapshot. Meanwhile the write-ahead log of a running node cannot be emptied, so a large database is better
verified in a backup."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator

import msgspec

from stream_storage.contract import Session, StreamRecord
from stream_storage.schema import messages, metadata, streams
from stream_storage.seal import SEAL, SEALED, STREAM_COLUMNS, row_seal, stream_seal
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.page import find_damage
from stream_storage.sqlite.rows import connection_of
from stream_storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from stream_storage.sqlite.statements import COUNT_MESSAGES, HAS_STREAM, NEXT_MESSAGES, NEXT_STREAM, READ_STREAM
from stream_storage.stream_rows import GET_STREAM

PROBLEMS_MAX = 1_000
"""The largest number of problems that a report lists. Further problems are only counted."""
PROGRESS_MESSAGES = 10_000

ADDED = {"saved_indexes": ("created_us", "generation")}
"""The columns that tables have got since schema version 2."""

Progress = Callable[[int, int], None]
"""A function that is called with the numbers of streams and messages checked so far."""


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification."""

    streams: int
    messages: int
    size_bytes: int  # the data of the messages that were read
    problems: tuple[str, ...]  # texts of the first PROBLEMS_MAX
    problem_count: int

    @property
    def sound(self) -> bool:
        return self.problem_count == 0


def verify(session: Session, progress: Progress = lambda streams, messages: None) -> VerifyReport:
    """Verifies the whole database. Raises StorageError if that is impossible, for example if it cannot be read at
    all."""
    session.begin()
    try:
        return _Verification(connection_of(session), progress).run()
    except sqlite3.Error as error:
        raise storage_error(error) from error
    finally:
        session.rollback()


class _Verification:
    def __init__(self, connection: sqlite3.Connection, progress: Progress) -> None:
        self._connection = connection
        self._progress = progress
        self._problems: list[str] = []
        self._problem_count = 0
        self._streams = 0
        self._messages = 0
        self._size_bytes = 0
        self._sealed = True

    def run(self) -> VerifyReport:
        # Check the schema first: its version shows whether the rows have seals.
        self._check_schema()
        self._check_file()
        for stream_id in self._ids(NEXT_STREAM):
            self._check_stream(stream_id)
            self._streams += 1
            self._progress(self._streams, self._messages)
        # Messages whose stream has no row were not checked with a stream above.
        self._check_orphans()
        self._check_seals()
        return VerifyReport(
            streams=self._streams,
            messages=self._messages,
            size_bytes=self._size_bytes,
            problems=tuple(self._problems),
            problem_count=self._problem_count,
        )

    def _problem(self, text: str) -> None:
        self._problem_count += 1
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(text)

    def _check_schema(self) -> None:
        execute = self._connection.execute
        found = execute("PRAGMA application_id").fetchone()[0]
        if found != APPLICATION_ID:
            self._problem(f"the file has application_id {found}, not {APPLICATION_ID}")
        version = execute("PRAGMA user_version").fetchone()[0]
        if not 1 <= version <= SCHEMA_VERSION:
            self._problem(f"the file has user_version {version}, not {SCHEMA_VERSION}")
        # A database of an older version is sound although its rows have no seals, or its positions no incarnations: the
        # next start of a node migrates the file and adds them.
        self._sealed = version != 1
        for table in metadata.sorted_tables:
            columns = {row[1] for row in execute(f"PRAGMA table_info('{table.name}')")}
            missing = [column.name for column in table.columns if column.name not in columns]
            later = ADDED.get(table.name, ()) if version < SCHEMA_VERSION else ()
            missing = [name for name in missing if name not in later and (self._sealed or name != SEAL)]
            if missing and (columns or table in (streams, messages)):
                self._problem(f"table {table.name} has no column {', '.join(missing)}")

    def _check_file(self) -> None:
        try:
            for (text,) in self._connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})"):
                if text != "ok":
                    self._problem(f"the file: {text}")
        except sqlite3.Error as error:
            self._problem(f"the file cannot be checked to the end: {error}")

    def _check_stream(self, stream_id: int) -> None:
        try:
            record = StreamRecord(*self._connection.execute(GET_STREAM, (stream_id,)).fetchone())
            name = f"stream {stream_id} ({record.name}/{record.partition})"
            if not 0 <= record.first_index <= record.next_index:
                self._problem(f"{name} goes from {record.first_index} to {record.next_index}")
            size_bytes = self._check_messages(name, record)
        except (sqlite3.Error, TypeError) as error:
            self._problem(f"stream {stream_id} cannot be read to its end: {error}")
            return
        if size_bytes != record.size_bytes:
            self._problem(f"{name} holds {size_bytes} bytes, its row says {record.size_bytes}")

    def _check_messages(self, name: str, record: StreamRecord) -> int:
        """Checks the indexes and checksums of a stream's messages. Returns the size of their data."""
        expected, size_bytes = record.first_index, 0
        for index, *columns in self._connection.execute(READ_STREAM, (record.stream_id,)):
            # Check that the indexes have no gap.
            if index > expected:
                self._problem(f"{name}: {_range(expected, index)} missing")
            elif index < expected:
                self._problem(f"{name}: message {index} is stored where {expected} belongs")
            # Check that the checksum fits.
            damage = find_damage(record.stream_id, index, *columns)
            if damage is not None:
                self._problem(damage)
            expected = index + 1
            size_bytes += len(columns[-1]) if isinstance(columns[-1], bytes) else 0
            self._messages += 1
            if self._messages % PROGRESS_MESSAGES == 0:
                self._progress(self._streams, self._messages)
        self._size_bytes += size_bytes
        # Check that the last message is the message before the next index.
        if expected < record.next_index:
            self._problem(f"{name}: {_range(expected, record.next_index)} missing")
        elif expected > record.next_index:
            self._problem(f"{name}: stored up to {expected - 1}, but its next index is {record.next_index}")
        return size_bytes

    def _check_orphans(self) -> None:
        try:
            for stream_id in self._ids(NEXT_MESSAGES):
                if self._connection.execute(HAS_STREAM, (stream_id,)).fetchone() is None:
                    count = self._connection.execute(COUNT_MESSAGES, (stream_id,)).fetchone()[0]
                    self._problem(f"{count} messages belong to stream {stream_id}, which does not exist")
        except sqlite3.Error as error:
            self._problem(f"the table of messages cannot be read to its end: {error}")

    def _check_seals(self) -> None:
        for table in SEALED if self._sealed else ():
            try:
                if has_seal(self._connection, table) is False:
                    self._problem(f"table {table} has no column {SEAL}")
                elif has_seal(self._connection, table):
                    for problem in find_broken(self._connection, table):
                        self._problem(problem)
            except sqlite3.Error as error:
                self._problem(f"table {table} cannot be read to its end: {error}")

    def _ids(self, statement: str) -> Iterator[int]:
        """Yields all stream ids of a table, in rising order. A new query for each keeps no cursor open."""
        stream_id = -1
        while (found := self._connection.execute(statement, (stream_id,)).fetchone()[0]) is not None:
            # In a damaged table, the query may find the same id again and again.
            if found <= stream_id:
                self._problem(f"the rows are not in order: {found} follows {stream_id}")
                return
            yield found
            stream_id = found


def _range(start: int, end: int) -> str:
    """Returns the subject and the verb of a problem text: "message 3 is", "messages 3 to 5 are"."""
    return f"message {start} is" if end == start + 1 else f"messages {start} to {end - 1} are"


def has_seal(connection: sqlite3.Connection, table: str) -> bool | None:
    """Returns whether a table has a column for the seal; None if the table does not exist."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
    return SEAL in columns if columns else None


def find_broken(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    """Yields an error text, with the primary key, for each row whose seal is wrong. Raises sqlite3.Error."""
    columns = connection.execute(f"PRAGMA table_info('{table}')").fetchall()
    names = [row[1] for row in columns]
    keys = [row[1] for row in sorted(columns, key=lambda row: row[5]) if row[5]]
    others = [name for name in names if name != SEAL]
    is_stream = table == "streams"
    if is_stream:
        # The first seven values are the arguments of the seal, in order. This is fast: a start checks all streams.
        others = [*STREAM_COLUMNS, *keys]
    quoted = ", ".join(f'"{name}"' for name in [*others, SEAL])
    for row in connection.execute(f'SELECT {quoted} FROM "{table}" NOT INDEXED'):
        if row[-1] != (stream_seal(*row[:7]) if is_stream else row_seal(table, row[:-1])):
            named = ", ".join(f"{key} {row[others.index(key)]!r}" for key in keys)
            yield f"the row of {table} with {named} is not what was written (its seal differs)"
