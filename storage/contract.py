"""The contract of the log: the records it keeps, the operations on it, and the errors they raise.

Two implementations keep the contract, `storage.log` (SQLite) and `storage.memory`; tests/storage runs the same tests on
both.

A stream is a row with an id that is never used again, a name and a partition. Its messages have the indexes from
`first_index` up to, not including, `next_index`. Indexes start at 0, have no gaps and are never assigned twice: the
next index is kept in the stream's row, so it survives the deletion of every message.

Indexes and limits are integers from 0 to 2**64 - 1, the largest number that a peer can write; no index above 2**63 - 1
is stored. Text is any text that UTF-8 can encode. For whatever a file, a disk or another process can cause, every
method raises StorageError and nothing else.
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

    first_index: the index of the earliest stored message; equal to next_index when there is none.
    next_index: the index that the next message gets.
    size_bytes: the data of all stored messages together, without keys and headers.
    """

    stream_id: int
    name: str
    partition: int
    first_index: int
    next_index: int
    size_bytes: int
    created_us: int


class Operation:
    """A piece of work for a storage thread: `apply` runs inside a transaction, then `on_done` runs in the trio thread.

    `on_done(self)` runs after the commit or after the failure. After a failure, `error` says why nothing of the
    operation was stored. `apply` may run again after a rollback, so it sets its results and never adds to them. An
    operation that was submitted as a read runs on a connection that cannot write.
    """

    __slots__ = ("error", "on_done")

    def __init__(self, on_done: Callable[[Any], None]) -> None:
        self.error: StorageError | None = None
        self.on_done = on_done

    def apply(self, session: Session) -> None:
        """Do the work, and keep the results in attributes. Raises StorageError, sqlite3.Error."""
        raise NotImplementedError

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        """Apply operations of this class that follow each other in a batch: all of them, or raise."""
        for operation in operations:
            operation.apply(session)

    def row_count(self) -> int:
        """How many messages the operation stores, for the statistics."""
        return 0


def ignore_done(operation: Operation) -> None:
    """The `on_done` of an operation that nobody waits for."""


class Append(Operation):
    """Adds messages at the end of one stream. The one owner of the stream assigns the indexes, from `first_index` on.

    data: one bytes object for each message. keys, headers: one for each message, or None if no message has any.
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
    """The log of many streams, used through one session."""

    # Writing: inside a transaction of a writing session.

    def ensure_stream(self, name: str, partition: int, created_us: int) -> StreamRecord:
        """The stream with this name and partition. If there is none it is made, empty and with next index 0."""
        ...

    def append(self, appends: Sequence[Append]) -> None:
        """Store all appends in order, or raise. After an error the caller has to roll the transaction back.

        Raises StreamNotFound; IndexConflict where an append does not begin at the next index of its stream, counting
        the appends before it in the same call.
        """
        ...

    def begin_at(self, stream_id: int, index: int) -> None:
        """Make a stream that never had a message begin at this index: the copy of a stream whose first messages are
        gone.

        Raises StreamNotFound; IndexConflict where the stream's next index is not 0.
        """
        ...

    def truncate_before(self, stream_id: int, index: int) -> int:
        """Delete the messages below `index`, and return how many were deleted. The next index does not change.

        The time grows with the number of messages, so callers delete many in several steps. Raises StreamNotFound.
        """
        ...

    def delete_stream(self, stream_id: int) -> None:
        """Delete the stream's row and all its messages. Raises StreamNotFound."""
        ...

    # Reading: in any session, in or outside a transaction.

    def find_stream(self, name: str, partition: int) -> StreamRecord | None: ...

    def get_stream(self, stream_id: int) -> StreamRecord:
        """Raises StreamNotFound."""
        ...

    def list_streams(
        self, prefix: str = "", after: tuple[str, int] | None = None, limit: int = 1000
    ) -> list[StreamRecord]:
        """The streams whose name begins with `prefix`, ordered by name and partition, from behind `after` on."""
        ...

    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        """A page: at most `limit` messages, ascending and without gaps, from max(index, first_index) on.

        The page ends before its data exceeds `bytes_max`, but it has at least one message if the stream has one there.
        If that first message is larger than `first_bytes_max`, the page is empty. At or beyond the end it is empty too.
        Raises StreamNotFound; DatabaseCorrupt, with stream and index, where a message is missing or its checksum
        differs.
        """
        ...

    def find_fitting(self, stream_id: int, index: int, bytes_max: int) -> int | None:
        """The index of the first message from `index` on with at most `bytes_max` bytes of data, or None."""
        ...


class Session(Protocol):
    """One connection to the database, and the log on it. One thread uses a session at a time."""

    @property
    def log(self) -> Log: ...

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's connection, in the same transaction, for the tables of other packages."""
        ...

    @property
    def in_transaction(self) -> bool: ...

    def begin(self) -> None: ...

    def commit(self) -> None:
        """Returns when the whole transaction is on disk. If it raises, the transaction may still be open."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, if one is open."""
        ...

    def savepoint(self) -> None:
        """Begin a part of the transaction that can be undone alone. Savepoints nest."""
        ...

    def release(self) -> None:
        """End the innermost savepoint and keep its changes."""
        ...

    def rollback_to(self) -> None:
        """End the innermost savepoint and undo its changes."""
        ...

    def close(self) -> None:
        """Undo an open transaction and end the session. Safe to repeat."""
        ...


class SessionSource(Protocol):
    """A database: it makes sessions."""

    def session(self) -> Session:
        """A session that writes. At most one such session is open at a time."""
        ...

    def read_session(self) -> Session:
        """A session that cannot write. It sees what was committed when its transaction, or its statement, began."""
        ...
