"""The whole contract of the log: what is stored, what may be asked, what comes back, what is refused.

Two implementations keep it, `storage.log` (SQLite) and `storage.memory`; tests/storage runs the same tests on
both.

A stream is a row with an id that is never used again, a name and a partition, and the messages with indexes
from `first_index` up to, not including, `next_index`. Indexes start at 0, have no gaps and are never assigned
twice: the next index is kept in the stream's row, so that it survives the deletion of every message.

Indexes and limits may be any integer from 0 to 2**64 - 1 (all that a peer can write); none above 2**63 - 1 is
stored. Text may be any that UTF-8 can write. Every method raises StorageError and nothing else for what a
file, a disk or another process can cause.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeAlias

import msgspec

from storage.errors import StorageError

Record: TypeAlias = tuple[int, bytes, int, bytes | None, bytes | None]
"""index, data, time in microseconds since 1970, key, headers."""


class StreamRecord(msgspec.Struct, frozen=True):
    """One stream-partition as stored.

    first_index: of the earliest stored message; equal to next_index when there is none.
    next_index: what the next message gets.
    size_bytes: the data of the stored messages, without keys and headers.
    """

    stream_id: int
    name: str
    partition: int
    first_index: int
    next_index: int
    size_bytes: int
    created_us: int


class Operation:
    """What a storage thread does for somebody: `apply` inside a transaction, then `on_done` on the trio side.

    `on_done(self)` runs after the commit, or after the failure; then `error` says why nothing of it was
    stored. `apply` may run again after it was rolled back, so it sets its results and never adds to them. A
    read runs on a connection that cannot write.
    """

    __slots__ = ("error", "on_done")

    def __init__(self, on_done: Callable[[Any], None]) -> None:
        self.error: StorageError | None = None
        self.on_done = on_done

    def apply(self, session: Session) -> None:
        """Do it, and keep the results in attributes. Raises StorageError, sqlite3.Error."""
        raise NotImplementedError

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        """Do operations of this class that follow each other, all of them or raise."""
        for operation in operations:
            operation.apply(session)

    def row_count(self) -> int:
        """How many messages it stores, for the statistics."""
        return 0


def ignore_done(operation: Operation) -> None:
    """The `on_done` of an operation that nobody waits for."""


class Append(Operation):
    """Messages for the end of one stream, from `first_index` on, which its one owner assigns.

    data: one bytes object a message; keys, headers: as many, or None where no message has any.
    """

    __slots__ = ("data", "first_index", "headers", "keys", "stream_id", "time_us")

    def __init__(
        self,
        stream_id: int,
        first_index: int,
        time_us: int,
        data: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        *,
        on_done: Callable[[Any], None] = ignore_done,
    ) -> None:
        assert keys is None or len(keys) == len(data), "one key a message"
        assert headers is None or len(headers) == len(data), "one headers a message"
        self.error = None
        self.on_done = on_done
        self.stream_id = stream_id
        self.first_index = first_index
        self.time_us = time_us
        self.data = data
        self.keys = keys
        self.headers = headers

    def apply(self, session: Session) -> None:
        session.log.append((self,))

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        session.log.append(operations)

    def row_count(self) -> int:
        return len(self.data)


class Log(Protocol):
    """The log, seen through one session."""

    # Writing: inside a transaction of a writing session.

    def ensure_stream(self, name: str, partition: int, created_us: int) -> StreamRecord:
        """The stream of that name and partition; made, empty and with next index 0, if it does not exist."""
        ...

    def append(self, appends: Sequence[Append]) -> None:
        """Store all of them, in order, or raise and leave the transaction to be rolled back.

        Raises IndexConflict where one does not begin at its stream's next index (counting those before it in
        the same call), StreamNotFound.
        """
        ...

    def begin_at(self, stream_id: int, index: int) -> None:
        """Let a stream that never had a message begin at this index, as a copy of one whose front is gone.

        Raises IndexConflict where its next index is not 0, StreamNotFound.
        """
        ...

    def truncate_before(self, stream_id: int, index: int) -> int:
        """Delete the messages below `index`; the count of those deleted. The end stays where it is.

        The work grows with that count; callers that delete much do it in steps. Raises StreamNotFound.
        """
        ...

    def delete_stream(self, stream_id: int) -> None:
        """Delete the stream with its messages and its end. Raises StreamNotFound."""
        ...

    # Reading: in any session, in or outside a transaction.

    def find_stream(self, name: str, partition: int) -> StreamRecord | None: ...

    def get_stream(self, stream_id: int) -> StreamRecord:
        """Raises StreamNotFound."""
        ...

    def list_streams(
        self, prefix: str = "", after: tuple[str, int] | None = None, limit: int = 1000
    ) -> list[StreamRecord]:
        """Streams whose name begins with `prefix`, by name, then partition; those beyond `after` only."""
        ...

    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        """A page: ascending and without gaps from max(index, first_index), at most `limit` messages.

        It stops before the data together passes `bytes_max`, but has at least one message if there is one,
        unless that one is larger than `first_bytes_max`: then it is empty. At or beyond the end it is empty.
        Raises StreamNotFound; DatabaseCorrupt, naming stream and index, where a message is missing or not
        what was written.
        """
        ...

    def find_fitting(self, stream_id: int, index: int, bytes_max: int) -> int | None:
        """The index of the first message from `index` on that has at most `bytes_max` of data; None: there is none."""
        ...


class Session(Protocol):
    """One connection and the log through it. Used by one thread at a time."""

    @property
    def log(self) -> Log: ...

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's connection, in the same transaction, for tables that other packages keep."""
        ...

    @property
    def in_transaction(self) -> bool: ...

    def begin(self) -> None: ...

    def commit(self) -> None:
        """Returns when all of the transaction is on disk. If it raises, the transaction may still be open."""
        ...

    def rollback(self) -> None:
        """Undo the transaction; nothing happens where there is none."""
        ...

    def savepoint(self) -> None:
        """Begin a part of the transaction that can be undone alone. Parts nest."""
        ...

    def release(self) -> None:
        """End the innermost part and keep what it did."""
        ...

    def rollback_to(self) -> None:
        """Undo what the innermost part did, and end it."""
        ...

    def close(self) -> None:
        """Undo an open transaction and end the session. Safe to repeat."""
        ...


class SessionSource(Protocol):
    """What makes sessions: a database."""

    def session(self) -> Session:
        """A session that writes. At most one is open at a time."""
        ...

    def read_session(self) -> Session:
        """A session that cannot write; it sees what was committed when its transaction or statement began."""
        ...
