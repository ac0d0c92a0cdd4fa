"""The interfaces of storage: the log of messages (`Log`), the sessions (`Session`), the operations (`Operation`), and a
database (`Engine`) with its work between commits (`Upkeep`).

A stream is a row with an id, a name and a partition. The id of a deleted stream is never used again. The messages of a
stream have the indexes from `first_index` up to, not including, `next_index`. Indexes start at 0, have no gaps and are
never assigned twice: the row stores the next index, so deleting every message does not reset it. A copy of another
stream can begin and go on at other indexes (`begin_at`, `skip_to`, `cut_from`).

An index or a limit is an integer from 0 to 2**64 - 1; the largest index that can be stored is 2**63 - 1. A name is any
text that UTF-8 can encode. Whatever a file, a disk or another process can cause is raised as a StorageError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import msgspec

from stream_storage.errors import StorageError
from stream_storage.histogram import Histogram

if TYPE_CHECKING:
    from stream_storage.statement import Rows, Statement, Values

T = TypeVar("T")

Record: TypeAlias = tuple[int, bytes, int, bytes | None, bytes | None]
"""One stored message: its index, data, time in microseconds since 1970, key and headers."""


class StreamRecord(msgspec.Struct, frozen=True):
    """The stored row of one stream-partition."""

    stream_id: int
    name: str
    partition: int
    first_index: int  # the index of the earliest stored message; equal to next_index if no message is stored
    next_index: int
    size_bytes: int  # the data of all stored messages, without keys and headers
    created_us: int  # the time of the stream's creation, in microseconds since 1970


SHORT_MESSAGES_MAX, SHORT_BYTES_MAX = 200, 64 * 1024
"""The largest number of messages of a short append, and the largest size of their data (`Operation.is_short`)."""


class Operation:
    """One write or read: a storage thread runs `apply` in a transaction, then the trio thread runs `on_done`.

    `on_done(self)` runs after the commit or after the failure, whose reason is in `error`. After a rollback `apply` can
    run again, so it overwrites its earlier results and does not add to them. A read runs on a connection that cannot
    write."""

    __slots__ = ("error", "on_done")
    needs_little: ClassVar[bool] = False
    """Whether the operation gets the ballast on a full disk: it frees room, or a consumer cannot go on without it."""

    def __init__(self, on_done: Callable[[Any], None]) -> None:
        self.error: StorageError | None = None
        self.on_done = on_done

    def apply(self, session: Session) -> None:
        """Does the work, and assigns the results to attributes. Raises StorageError, sqlite3.Error."""
        raise NotImplementedError

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        """Applies consecutive operations of a batch, all of this class. Raises if one of them fails."""
        for operation in operations:
            operation.apply(session)

    def row_count(self) -> int:
        """Returns how many messages the operation stores, for the statistics."""
        return 0

    def is_short(self) -> bool:
        """Returns whether `apply` takes some hundred microseconds at most, so that the trio thread can run it."""
        return False


class Do(Operation, Generic[T]):
    """Calls a function inside one transaction. result: the result of the function, after the operation."""

    __slots__ = ("_work", "result")
    result: T

    def __init__(self, work: Callable[[Session], T], on_done: Callable[[Any], None]) -> None:
        super().__init__(on_done)
        self._work = work

    def apply(self, session: Session) -> None:
        self.result = self._work(session)


class DoLittle(Do[T]):
    """A `Do` that may use the room of the ballast on a full disk: it frees room, or is needed for a consumer or stream
    to go on."""

    __slots__ = ()
    needs_little = True


def ignore_done(operation: Operation) -> None:
    """The `on_done` of an operation for which no caller waits."""


class CommitTimes(NamedTuple):
    """A committed transaction: its times, in nanoseconds since 1970, and its messages, of all streams together."""

    began_ns: int
    ended_ns: int
    rows: int


class Append(Operation):
    """An operation that adds messages at the end of one stream, with consecutive indexes.

    first_index: the index of the first message, chosen by the worker that owns the stream.
    time_us: the time of all the messages, in microseconds since 1970.
    keys, headers: one for each message; None if no message has any.
    size_bytes: the size of the data, without keys and headers.
    commit: the transaction that stored the messages, if its runner times appends; None before, and after a failure."""

    __slots__ = ("commit", "data", "first_index", "headers", "keys", "size_bytes", "stream_id", "time_us")

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
        self.size_bytes = sum(map(len, data))
        self.commit: CommitTimes | None = None

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.data)

    def apply(self, session: Session) -> None:
        session.log.append((self,))

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        session.log.append(operations)

    def row_count(self) -> int:
        return len(self.data)

    def is_short(self) -> bool:
        return len(self.data) <= SHORT_MESSAGES_MAX and self.size_bytes <= SHORT_BYTES_MAX


def timed_appends(stream_id: int, records: Sequence[Record]) -> list[Append]:
    """Returns the appends that store consecutive messages with their own times, keys and headers, one for each run of
    messages with the same time. `Log.append` stores all of them in one call, or nothing."""
    appends: list[Append] = []
    for time_us, run in groupby(records, itemgetter(2)):
        indexes, data, _, keys, headers = zip(*run, strict=True)
        assert indexes[-1] == indexes[0] + len(indexes) - 1, "the indexes follow each other"
        appends.append(
            Append(
                stream_id,
                indexes[0],
                time_us,
                data,
                keys if any(key is not None for key in keys) else None,
                headers if any(each is not None for each in headers) else None,
            )
        )
    return appends


def find_falls(records: Sequence[Record], last_time_us: int) -> list[int]:
    """Returns the indexes of the messages whose time is lower than that of the message before."""
    times_us = [last_time_us, *(record[2] for record in records)]
    return [record[0] for record, before_us in zip(records, times_us, strict=False) if record[2] < before_us]


class Log(Protocol):
    """The interface of the log of messages: the streams and messages of one database, in one session."""

    # Writing: inside a transaction of a writing session.

    def ensure_stream(self, name: str, partition: int, created_us: int) -> StreamRecord:
        """Returns the stream with this name and partition. Creates it with next index 0 if there is none."""

    def append(self, appends: Sequence[Append]) -> None:
        """Stores the messages of all appends, in order; messages with different times are several appends
        (`timed_appends`). After an error the caller must roll back. Raises UnknownStreamId, and
        IndexConflict if an append does not begin at the next index of its stream."""

    def begin_at(self, stream_id: int, index: int) -> None:
        """Sets the first and the next index of a stream that never had a message, for a copy of a stream whose first
        messages retention has deleted. Raises UnknownStreamId, and IndexConflict if the next index is not 0."""

    def skip_to(self, stream_id: int, index: int) -> None:
        """Sets the first and the next index of a stream without messages, for a copy whose source has deleted messages
        that the copy lacks. Raises UnknownStreamId, and IndexConflict for a stream with messages or a higher next
        index."""

    def cut_from(self, stream_id: int, index: int) -> int:
        """Deletes the messages from `index` on, and returns their number. `index` becomes the next index, so new
        messages get the deleted indexes. A copy needs this when its last messages differ from its source; the caller
        has stored them elsewhere. Callers cut many messages in several short calls, from the end. Raises
        UnknownStreamId."""

    def truncate_before(self, stream_id: int, index: int) -> int:
        """Deletes the messages below `index`, and returns their number. The next index does not change. Callers delete
        many messages in several calls, to keep each call short. Raises UnknownStreamId."""

    def delete_stream(self, stream_id: int) -> None:
        """Deletes the stream's row and all its messages. Raises UnknownStreamId."""

    # Reading: in any session, in or outside a transaction.

    def find_stream(self, name: str, partition: int) -> StreamRecord | None: ...

    def get_stream(self, stream_id: int) -> StreamRecord:
        """Returns the stream with this id. Raises UnknownStreamId."""

    def list_streams(
        self, prefix: str = "", after: tuple[str, int] | None = None, limit: int = 1000
    ) -> list[StreamRecord]:
        """Returns at most `limit` streams whose names begin with `prefix`, by name and partition; with `after` (a name
        and a partition), those that follow it."""

    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        """Returns a page: at most `limit` messages with consecutive indexes, from max(index, first_index) on.

        bytes_max: the most data that a page of several messages has. A first message that is larger comes alone.
        first_bytes_max: the page is empty if its first message is larger. None: no limit.

        The page is also empty if `index` is at or beyond the next index. Raises UnknownStreamId, and DatabaseCorrupt,
        with stream and index, if a message is missing or its checksum is wrong."""

    def find_fitting(self, stream_id: int, index: int, bytes_max: int) -> int | None:
        """Returns the first index, from `index` on, whose message has at most `bytes_max` bytes of data, or None."""


class Session(Protocol):
    """One connection to the database, and the log of messages on it. Invariant: one thread at a time uses a session."""

    @property
    def log(self) -> Log: ...

    def execute(self, statement: Statement, values: Values = ()) -> Rows:
        """Executes one statement, with values in order or by name. Raises StorageError; so does reading the rows."""

    def execute_many(self, statement: Statement, values: Iterable[Values]) -> None:
        """Executes one statement with several sets of values, in order. Raises StorageError."""

    def find_many(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        """Executes a SELECT of at most one row with each set of values. Returns each row, or None. Raises
        StorageError."""

    @property
    def in_transaction(self) -> bool: ...

    def begin(self, *, deferred: bool = False) -> None:
        """Begins a transaction. With `deferred`, the session may send its statements to a server later, to save trips.
        Then the errors of an append come at the next statement, or as PartFailed at the commit."""

    def commit(self) -> None:
        """Commits. Returns when the whole transaction is on disk. After an error it can still be open."""

    def rollback(self) -> None: ...

    def savepoint(self) -> None:
        """Sets a savepoint, which can be inside another one."""

    def release(self) -> None:
        """Ends the innermost savepoint and keeps its changes."""

    def rollback_to(self) -> None:
        """Ends the innermost savepoint and undoes its changes."""

    def try_write(self, size_bytes: int) -> bool:
        """Writes this many bytes in the open transaction and takes them back, to find out whether an append of this
        size would be stored. Returns False if the database cannot find that out, so that the append may fail. Raises
        StorageError; the caller then rolls back."""

    def close(self) -> None:
        """Undoes an open transaction and ends the session. Safe to repeat."""

    def reclaim(self, pages: int, keep: int) -> int:
        """Gives at most `pages` free pages of the file back to the disk, in the open transaction, but keeps `keep` of
        them. Returns the number of free pages left; 0 if the database does this by itself."""

    def fence(self, owner: str) -> bool:
        """Fences another member of the cluster, by its `stream_storage.contract.Engine.owner`: from the commit of
        the open transaction on, that member can never commit again. Waits for its running transaction. Returns False if
        the member was fenced before. Raises StorageError; OperationFailed if the database has only one writer."""

    def disconnect(self, owner: str) -> None:
        """Ends the connection of another member to the database server. A member that is frozen in a statement would
        otherwise keep its locks; one that lives connects again. Raises StorageError."""

    def recover(self, error: StorageError) -> bool:
        """Returns whether the operations are to be done again from the beginning of their transaction, on a new
        connection to the server, after `error`. Can take as long as an operation may wait for a server."""

    def settle(self, error: StorageError) -> bool | StorageError:
        """Returns whether the transaction is stored after `commit` has raised, or the error that keeps the session from
        finding out. If that error is not fatal, the session finds out before its next transaction."""

    def error_of(self, raised: BaseException) -> StorageError:
        """Returns the StorageError for an exception that this session or an operation has raised. The session may look
        for the cause, for example whether the disk has room."""


class Upkeep:
    """The work that a database needs between commits, in the writing thread. This base class does nothing.
    `after_commit` and `make_room` return None, or a fatal error, after which nothing more may be written.

    checkpoints, checkpoint_failures: the numbers of all and of failed checkpoints of the write-ahead log.
    checkpoint_s_last, wal_pages: the duration of the last checkpoint, and the pages of the log then."""

    def __init__(self, sync_seconds: Histogram) -> None:
        self.sync_seconds = sync_seconds
        self.checkpoints = 0
        self.checkpoint_failures = 0
        self.checkpoint_s_last = 0.0
        self.wal_pages = 0

    def is_due(self, commits: int, *, tight: bool) -> bool:
        """Returns whether `after_commit` has something to do if no operation waits."""
        return False

    def after_commit(self, commits: int, *, waiting: bool, tight: bool) -> StorageError | None:
        """Does the work that is due after `commits` commits. waiting: whether operations wait for the next commit.
        tight: whether the disk has little room left."""
        return None

    def make_room(self) -> StorageError | None:
        """Frees room in the database, after a commit found none, so that the commit can be tried again."""
        return None

    def give_up_ballast(self) -> bool:
        """Frees the room that is kept for deletes and saved positions (`stream_storage.sqlite.ballast`), and returns
        whether there was any."""
        return False

    def without_waiting(self) -> AbstractContextManager[None]:
        """Makes the transactions of the block fail with StorageBusy at once if another program holds the database."""
        return nullcontext()

    def close(self) -> None:
        """Does the work of a clean stop."""


class SessionSource(Protocol):
    """The interface of a database that opens sessions."""

    def session(self) -> Session:
        """Opens the session that writes. At most one is open at a time."""

    def read_session(self) -> Session:
        """Opens a session that cannot write. Each of its transactions sees all commits made before it began; a
        statement outside a transaction counts as one."""


class Engine(SessionSource, Protocol):
    """The interface of a database that a node opens, keeps and closes."""

    @property
    def path(self) -> Path | None:
        """The file of the database, which another process can read; None if there is no such file."""

    @property
    def owner(self) -> str | None:
        """The unique text that stands for this process in a database to which the members of a cluster write, and by
        which another member can fence it; None for a database with one writer."""

    @property
    def is_local(self) -> bool:
        """Whether a commit waits for no other machine, so that a short one can be made in the trio thread."""

    def upkeep(self, session: Session) -> Upkeep:
        """Returns the work that the database needs between commits. session: the session that writes."""

    def distrust(self) -> None:
        """Makes the next opening check the database as after a crash. Called after a fatal error."""

    def close(self) -> None:
        """Closes the database. Its sessions must be closed already. Safe to repeat."""
