"""The interfaces of storage: the log of messages (`Log`), the sessions (`Session`) and the operations (`Operation`).

`Log` has two implementations: `stream_storage.sqlite.log` uses SQLite, and `stream_storage.memory` keeps everything in
memory. tests/stream_storage runs the same tests on both.

A stream is a row with an id, a name and a partition. The id of a deleted stream is never used again. The messages of a
stream have the indexes from `first_index` up to, not including, `next_index`. Indexes start at 0, have no gaps and are
never assigned twice: the stream's row stores the next index, so deleting every message does not reset the next index.
A copy of another stream can begin and go on at other indexes (`begin_at`, `skip_to`, `cut_from`).

An index or a limit is an integer from 0 to 2**64 - 1, the largest integer that a client can send. The largest index
that can be stored is 2**63 - 1. A name is any text that UTF-8 can encode. For every failure that a file, a disk or
another process can cause, the methods raise a StorageError and no other exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

import msgspec

from stream_storage.errors import StorageError

if TYPE_CHECKING:
    from stream_storage.statement import Rows, Statement, Values

Record: TypeAlias = tuple[int, bytes, int, bytes | None, bytes | None]
"""One stored message: its index, data, time in microseconds since 1970, key and headers."""


class StreamRecord(msgspec.Struct, frozen=True):
    """The stored row of one stream-partition.

    first_index: the index of the earliest stored message; equal to next_index if no message is stored.
    next_index: the index that the next message gets.
    size_bytes: the total size of the data of all stored messages, without keys and headers.
    created_us: the time of the stream's creation, in microseconds since 1970.
    """

    stream_id: int
    name: str
    partition: int
    first_index: int
    next_index: int
    size_bytes: int
    created_us: int


SHORT_MESSAGES_MAX, SHORT_BYTES_MAX = 200, 64 * 1024
"""The largest number of messages of a short append, and the largest size of their data (`Operation.is_short`)."""


class Operation:
    """One write or read: a storage thread runs `apply` in a transaction, then the trio thread runs `on_done`.

    `on_done(self)` runs after the commit or after the failure. `error` is the reason of the failure, or None. After a
    rollback `apply` can run again, so it must overwrite its earlier results and must not add to them. A read runs on a
    connection that cannot write.
    """

    __slots__ = ("error", "on_done")
    needs_little: ClassVar[bool] = False
    """Whether the operation frees room, or saves what a consumer needs to go on: on a full disk it gets the ballast."""

    def __init__(self, on_done: Callable[[Any], None]) -> None:
        self.error: StorageError | None = None
        self.on_done = on_done

    def apply(self, session: Session) -> None:
        """Do the work of the operation, and assign the results to its attributes.

        Raises StorageError, sqlite3.Error.
        """
        raise NotImplementedError

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        """Apply consecutive operations of a batch, all of this class.

        Raises an exception if one of the operations fails.
        """
        for operation in operations:
            operation.apply(session)

    def row_count(self) -> int:
        """Returns how many messages the operation stores, for the statistics."""
        return 0

    def is_short(self) -> bool:
        """Returns whether `apply` takes some hundred microseconds at most, so that the trio thread can run it."""
        return False


def ignore_done(operation: Operation) -> None:
    """Does nothing. Serves as the `on_done` of an operation if no caller waits for the operation."""


class Append(Operation):
    """An operation that adds messages at the end of one stream. The messages get consecutive indexes.

    first_index: the index of the first message, chosen by the worker that owns the stream.
    time_us: the time of all the messages, in microseconds since 1970.
    data: the data of each message.
    keys: the key of each message, or None if no message has a key.
    headers: the headers of each message, or None if no message has headers.
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

    def is_short(self) -> bool:
        return len(self.data) <= SHORT_MESSAGES_MAX and sum(map(len, self.data)) <= SHORT_BYTES_MAX


class TimedAppend(Append):
    """An append whose commit is timed, if its runner times appends.

    commit_began_ns, commit_ended_ns: when the transaction began, and when it was synced, in nanoseconds since 1970; 0
    before, and after a failure.
    commit_rows: the number of messages that the transaction has stored for all streams together.
    """

    __slots__ = ("commit_began_ns", "commit_ended_ns", "commit_rows")

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
        super().__init__(stream_id, first_index, time_us, data, keys, headers, on_done=on_done)
        self.commit_began_ns = self.commit_ended_ns = self.commit_rows = 0


class Log(Protocol):
    """The interface of the log of messages.

    It reads and writes the streams and messages of one database in one session.
    """

    # Writing: inside a transaction of a writing session.

    def ensure_stream(self, name: str, partition: int, created_us: int) -> StreamRecord:
        """Returns the stream with this name and partition. If no such stream exists, creates an empty stream with next
        index 0."""
        ...

    def append(self, appends: Sequence[Append]) -> None:
        """Store the messages of all appends, in order. After an error the caller must roll back the transaction.

        Messages of one stream with different times are several appends, see `stream_storage.timed.timed_appends`.

        Raises StreamNotFound. Raises IndexConflict if an append does not begin at the next index of its stream. Each
        append moves the next index for the later appends of the same call.
        """
        ...

    def begin_at(self, stream_id: int, index: int) -> None:
        """Set the first index and the next index of a stream that never had a message.

        Used to copy a stream whose first messages retention has deleted: the copy must begin at the same index.

        Raises StreamNotFound. Raises IndexConflict if the stream's next index is not 0.
        """
        ...

    def skip_to(self, stream_id: int, index: int) -> None:
        """Set the first index and the next index of a stream that has no message now.

        Used for a copy of a stream that has deleted messages before the copy had them.

        Raises StreamNotFound. Raises IndexConflict if the stream has messages, or its next index is above `index`.
        """
        ...

    def cut_from(self, stream_id: int, index: int) -> int:
        """Delete the messages at `index` and above, and return how many were deleted. `index` becomes the next index.

        This is the only way in which an index is given again. Used for a copy of a stream whose last messages are not
        those of its source; the caller has stored these messages elsewhere. A deletion takes longer the more messages
        it deletes, so callers cut many messages in several calls, from the end. Raises StreamNotFound.
        """
        ...

    def truncate_before(self, stream_id: int, index: int) -> int:
        """Delete the messages below `index`, and return how many were deleted. The next index does not change.

        A deletion takes longer the more messages it deletes, so callers delete many messages in several calls.
        Raises StreamNotFound.
        """
        ...

    def delete_stream(self, stream_id: int) -> None:
        """Delete the stream's row and all its messages. Raises StreamNotFound."""
        ...

    # Reading: in any session, in or outside a transaction.

    def find_stream(self, name: str, partition: int) -> StreamRecord | None:
        """Returns the stream with this name and partition, or None if no such stream exists."""
        ...

    def get_stream(self, stream_id: int) -> StreamRecord:
        """Returns the stream with this id. Raises StreamNotFound."""
        ...

    def list_streams(
        self, prefix: str = "", after: tuple[str, int] | None = None, limit: int = 1000
    ) -> list[StreamRecord]:
        """Returns at most `limit` streams whose names begin with `prefix`, ordered by name and partition.

        after: the name and partition after which the list begins; None for the beginning.
        """
        ...

    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        """Returns a page: at most `limit` messages with consecutive indexes, from max(index, first_index) on.

        The data of a page with several messages takes at most `bytes_max` bytes. The first message is returned even if
        it is larger. The page is empty if the first message is larger than `first_bytes_max` (None means no limit), or
        if `index` is at or beyond the next index of the stream. Raises StreamNotFound. Raises DatabaseCorrupt, with
        stream and index, if a message is missing or its checksum is wrong.
        """
        ...

    def find_fitting(self, stream_id: int, index: int, bytes_max: int) -> int | None:
        """Returns the index of the first message, from `index` on, with at most `bytes_max` bytes of data. Returns None
        if no such message exists."""
        ...


class Session(Protocol):
    """The interface of a session: one connection to the database, and the log of messages on that connection.

    A session must be used by one thread at a time."""

    @property
    def log(self) -> Log:
        """The log of messages, read and written through this session."""
        ...

    def execute(self, statement: Statement, values: Values = ()) -> Rows:
        """Executes one statement, and returns its rows. Other packages read and write their own tables by it.

        values: the values of the statement's parameters, in their order or by their names. Raises StorageError; so does
        reading the rows.
        """
        ...

    def execute_many(self, statement: Statement, values: Iterable[Values]) -> None:
        """Executes one statement with several sets of values, as if one after the other. Raises StorageError."""
        ...

    def find_many(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        """Executes a SELECT that finds at most one row with each of several sets of values. Returns for each set its
        row, or None. Raises StorageError."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def begin(self, *, deferred: bool = False) -> None:
        """Begin a transaction.

        deferred: whether the session may send statements later than it is told to execute them, and so raise their
        errors later: those of an append at the next statement, or as PartFailed at the commit. This saves trips to a
        server. Without it, every error is raised where it belongs.
        """
        ...

    def commit(self) -> None:
        """Commit the transaction. Returns when the whole transaction is on disk. After an error the transaction can
        still be open."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, if one is open."""
        ...

    def savepoint(self) -> None:
        """Set a savepoint: the changes after the savepoint can be undone without the rest of the transaction.
        Savepoints nest."""
        ...

    def release(self) -> None:
        """End the innermost savepoint and keep its changes."""
        ...

    def rollback_to(self) -> None:
        """End the innermost savepoint and undo its changes."""
        ...

    def try_write(self, size_bytes: int) -> bool:
        """Writes this many bytes in the open transaction and takes them back, to find out whether an append of this
        size would be stored. Returns whether that is known now: without an error, False means that the append may
        fail. Raises StorageError; the caller must then roll back the transaction."""
        ...

    def close(self) -> None:
        """Undo an open transaction and end the session. Safe to repeat."""
        ...

    def reclaim(self, pages: int, keep: int) -> int:
        """Gives at most `pages` free pages of the database file back to the disk, in the open transaction, so that
        `keep` of them stay. Returns the number of free pages left; 0 if the database does this by itself."""
        ...

    def fence(self, owner: str) -> bool:
        """Fences another member of the cluster, in the open transaction: from its commit on, that member can never
        commit again. Waits for a transaction of that member that still runs. Returns False if it was fenced before.

        owner: the text that stands for the process of that member, see `stream_storage.engine.SharedEngine`.
        Raises StorageError; OperationFailed if the database has only one writer.
        """
        ...

    def disconnect(self, owner: str) -> None:
        """Ends the connection of another member of the cluster to the database server, if it writes over one. A member
        that is frozen in the middle of a statement would otherwise keep its locks for as long as it is frozen; one that
        lives connects again.

        owner: as for `fence`. Raises StorageError.
        """
        ...

    def recover(self, error: StorageError) -> bool:
        """Called after an operation has failed. Returns whether the operations are to be done again, from the beginning
        of their transaction: the connection to a database server was lost, and there is a new one. Can take as long as
        an operation may wait for a server.
        """
        ...

    def settle(self, error: StorageError) -> bool | StorageError:
        """Called after `commit` has raised. Returns whether the transaction is stored, or the error that keeps the
        session from finding out. If that error is fatal, nothing more can be written. Otherwise the session finds it
        out before its next transaction begins. Can take as long as an operation may wait for a server."""
        ...

    def error_of(self, raised: BaseException) -> StorageError:
        """Returns the StorageError for an exception that a call of this session or the code of an operation has raised.

        The session may look for the cause, for example whether the disk has room. The exception becomes the cause of
        the StorageError; a StorageError is returned unchanged, unless its cause was found.
        """
        ...
