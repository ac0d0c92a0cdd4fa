"""Transactions: the access of a commit store to its database. It runs each piece of work in one transaction, and knows
no tables.

There are two kinds. `SessionTransactions` opens its own sessions, for a database to which nothing else writes.
`RunnerTransactions` uses the writing thread of a node, where all waiting operations share one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from threading import Event, Lock
from typing import Any, Protocol, TypeVar

from storage.contract import Operation, Session, SessionSource
from storage.errors import StorageClosed, StorageError, storage_error

Result = TypeVar("Result")

CHECKPOINT_PAGES = 1_000
"""When the write-ahead log has this many pages, SQLite copies it into the file at the end of a commit. This number is
SQLite's default. The other sessions of the database never copy the log at a commit."""


class Transactions(Protocol):
    """Transactions: the interface for reads and writes of a database. Any thread that may block can use it.

    A piece of work is a function of the connection. It may run twice, if the first run was rolled back. It may raise
    only sqlite3.Error; it returns every other error, before it has changed anything.
    """

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a piece of work in a transaction. Returns its result when the transaction is on disk.

        Raises StorageError; then nothing of the work was stored, unless the result of the commit is unknown.
        """
        ...

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a piece of work that only reads, on one state of the database. Returns its result. Raises
        StorageError."""
        ...


class SessionTransactions:
    """SessionTransactions: an implementation of `Transactions` with one writing and one reading session, which it
    opens, and closes in `close`.

    Invariant: after a fatal error nothing more is written.
    """

    def __init__(self, source: SessionSource, *, on_fatal: Callable[[], object] | None = None) -> None:
        """on_fatal: a function that is called after a fatal error, for example `Database.distrust` of `storage`. Raises
        StorageError."""
        self._failure: StorageError | None = None
        self._on_fatal = on_fatal
        self._write_lock = Lock()
        self._read_lock = Lock()
        self._writing = source.session()
        try:
            self._reading = source.read_session()
            self._writing.connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        except BaseException:
            self._writing.close()
            raise

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
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

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        with self._read_lock:
            return _run(self._reading, work, commit=False)

    def close(self) -> None:
        """Close both sessions. Safe to repeat."""
        with self._write_lock, self._read_lock:
            self._reading.close()
            self._writing.close()


class RunnerTransactions:
    """RunnerTransactions: an implementation of `Transactions` with a `storage.runner.Runner`, for threads that the trio
    run of the runner has started.

    submit_write, submit_read: pass an operation to the runner in its trio thread, as `lambda operation:
    trio.from_thread.run_sync(runner.submit_write, operation)` does. The trio thread must not call `write` or `read`: it
    would wait for a result that only the trio thread can deliver.
    """

    def __init__(self, submit_write: Callable[[Operation], object], submit_read: Callable[[Operation], object]) -> None:
        self._submit_write = submit_write
        self._submit_read = submit_read

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return _wait_done(self._submit_write, work)

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return _wait_done(self._submit_read, work)


class Work(Operation):
    """Work: a storage operation for whose end one thread waits."""

    __slots__ = ("done", "results", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        super().__init__(Work.wake)
        self.work = work
        self.results: list[Any] = []
        self.done = Event()

    def apply(self, session: Session) -> None:
        self.results = [self.work(session.connection)]

    def wake(self) -> None:
        self.done.set()


def _wait_done(submit: Callable[[Operation], object], work: Callable[[sqlite3.Connection], Result]) -> Result:
    operation = Work(work)
    submit(operation)
    operation.done.wait()
    if operation.error is not None:
        raise operation.error
    result: Result = operation.results[0]
    return result


def _run(session: Session, work: Callable[[sqlite3.Connection], Result], *, commit: bool) -> Result:
    session.begin()
    try:
        result = work(session.connection)
        if commit:
            session.commit()
    except BaseException as error:
        session.rollback()
        if isinstance(error, sqlite3.Error):
            raise storage_error(error) from error
        raise
    if not commit:
        session.rollback()
    return result
