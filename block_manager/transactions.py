"""The access of a commit store to its SQLite database: each piece of work runs in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from threading import Event, Lock
from typing import Protocol, TypeAlias, TypeVar

from block_manager.errors import BlockManagerError
from stream_storage.contract import Do, Operation, Session, SessionSource
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.failpoint import failpoint
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.rows import connection_of

Result = TypeVar("Result")
Write: TypeAlias = Callable[[Connection], object]
"""Work of a program in a transaction. It must neither commit nor roll back."""

CHECKPOINT_PAGES = 1_000
"""The size of the WAL (write-ahead log), in pages, at which a commit of `SessionTransactions` copies the WAL into the
database file. The number is the default of SQLite."""


class Transactions(Protocol):
    """Transactions: the interface for reads and writes of a database. A call blocks its thread until its work is done.

    The work can run a second time if the first run was rolled back. It may raise sqlite3.Error only, and
    returns any other error as its result, before it changes anything.
    """

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Returns the result of the work after its transaction is on disk.

        Raises StorageError; then nothing was stored, unless the result of the commit is unknown.
        """
        ...

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Returns the result of work that only reads, on one state of the database. Raises StorageError."""
        ...


class SessionTransactions:
    """SessionTransactions: a `Transactions` with sessions of its own, for a database that nothing else writes to.

    Invariant: nothing is written after a fatal storage error.
    """

    def __init__(self, source: SessionSource, *, on_fatal: Callable[[], object] | None = None) -> None:
        """Opens both sessions. Raises StorageError.

        on_fatal: a function that is called after a fatal storage error, for example `Database.distrust`.
        """
        self._failure: StorageError | None = None
        self._on_fatal = on_fatal
        self._write_lock = Lock()
        self._read_lock = Lock()
        self._writing = source.session()
        try:
            self._reading = source.read_session()
            connection_of(self._writing).execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        except BaseException:
            self._writing.close()
            raise

    def write(self, work: Callable[[Connection], Result]) -> Result:
        with self._write_lock:
            if self._failure is not None:
                raise StorageClosed(f"nothing is written any more, since {self._failure}")
            try:
                return _run(self._writing, work, commit=True)
            except StorageError as error:
                if error.fatal:
                    self._failure = error
                    if self._on_fatal is not None:
                        self._on_fatal()
                raise

    def read(self, work: Callable[[Connection], Result]) -> Result:
        with self._read_lock:
            return _run(self._reading, work, commit=False)

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._reading.close()
            self._writing.close()


class RunnerTransactions:
    """RunnerTransactions: a `Transactions` that shares the writing thread of a running node, and so its commits.

    Only threads that the trio run of the node has started may call its methods. The trio thread itself must not: it
    would wait for a result that only the trio thread can deliver.

    submit_write, submit_read: functions that pass an operation to the runner in the trio thread. An example is `lambda
    operation: trio.from_thread.run_sync(runner.submit_write, operation)`.
    """

    def __init__(self, submit_write: Callable[[Operation], object], submit_read: Callable[[Operation], object]) -> None:
        self._submit_write = submit_write
        self._submit_read = submit_read

    def write(self, work: Callable[[Connection], Result]) -> Result:
        return _wait_done(self._submit_write, work)

    def read(self, work: Callable[[Connection], Result]) -> Result:
        return _wait_done(self._submit_read, work)


class JoinedTransactions:
    """JoinedTransactions: a `Transactions` that uses another one. A program commits its own work together with a
    change of the blocks: both are on disk afterwards, or neither is.

        with joined.also(save_state):
            manager.persist(head, "chain")
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._also: Write | None = None

    @contextmanager
    def also(self, work: Write) -> Iterator[None]:
        """Does `work` at the beginning of the transaction of the first write inside the `with` statement. If there was
        no write, the end of the statement does `work` in a transaction of its own. An exception of `work` undoes the
        transaction. Only one thread may write meanwhile.
        """
        self._also = work
        try:
            yield
            if self._also is not None:
                self._transactions.write(work)
        finally:
            self._also = None

    def write(self, work: Callable[[Connection], Result]) -> Result:
        also, self._also = self._also, None
        if also is None:
            return self._transactions.write(work)

        def both(connection: Connection) -> Result:
            also(connection)
            result = work(connection)
            # An error that the work returns is raised here, so that the changes of `also` are undone, too.
            if isinstance(result, BlockManagerError):
                raise result
            return result

        return self._transactions.write(both)

    def read(self, work: Callable[[Connection], Result]) -> Result:
        return self._transactions.read(work)


def _wait_done(submit: Callable[[Operation], object], work: Callable[[Connection], Result]) -> Result:
    done = Event()
    operation = Do(lambda session: work(connection_of(session)), lambda operation: done.set())
    submit(operation)
    done.wait()
    if operation.error is not None:
        raise operation.error
    return operation.result


def _run(session: Session, work: Callable[[Connection], Result], *, commit: bool) -> Result:
    if commit:
        failpoint("before_begin")
    session.begin()
    try:
        result = work(connection_of(session))
        if commit:
            failpoint("after_rows_before_commit")
            session.commit()
            failpoint("after_commit_before_confirm")
    except BaseException as error:
        session.rollback()
        if isinstance(error, sqlite3.Error):
            raise storage_error(error) from error
        raise
    if not commit:
        session.rollback()
    return result
