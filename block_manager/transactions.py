"""Transactions: how a commit store reaches its database. One piece of work is one transaction. It knows no tables.

There are two kinds. `SessionTransactions` has sessions of its own, for a database to which nothing else writes.
`RunnerTransactions` uses the writing thread of a node, where everything that waits shares one commit.
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
"""SQLite's own default: this much of the write-ahead log is copied into the file at the end of a commit. Other
sessions of the database never copy it."""


class Transactions(Protocol):
    """Transactions: reads and writes of a database, for any thread that may block.

    A piece of work may run twice, the first time in vain. It may raise only sqlite3.Error; every other problem it
    returns, before it has changed anything.
    """

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do the work in a transaction, and return when that is on disk.

        Raises StorageError: then nothing of it was stored, unless the commit itself failed without an answer.
        """
        ...

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Do the work on one state of the database. Raises StorageError."""
        ...


class SessionTransactions:
    """`Transactions` with one writing and one reading session, opened here and closed by `close`.

    Invariant: after a fatal error nothing is written any more.
    """

    def __init__(self, source: SessionSource, *, on_fatal: Callable[[], object] | None = None) -> None:
        """on_fatal: called after such an error, as `Database.distrust` of `storage` is. Raises StorageError."""
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
        """Safe to repeat."""
        with self._write_lock, self._read_lock:
            self._reading.close()
            self._writing.close()


class RunnerTransactions:
    """`Transactions` through a `storage.runner.Runner`, from threads that its trio run started.

    submit_write, submit_read: pass an operation to the runner in its trio thread, as
    `lambda operation: trio.from_thread.run_sync(runner.submit_write, operation)` does. The trio thread itself
    must not call `write` or `read`: it would wait for what only it can deliver.
    """

    def __init__(self, submit_write: Callable[[Operation], object], submit_read: Callable[[Operation], object]) -> None:
        self._submit_write = submit_write
        self._submit_read = submit_read

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return _wait_done(self._submit_write, work)

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return _wait_done(self._submit_read, work)


class Work(Operation):
    """Work: an operation of the storage that one thread waits for."""

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
