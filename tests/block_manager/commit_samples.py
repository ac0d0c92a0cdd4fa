"""Commit stores for tests, and ways to come between them and their database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from block_manager.transactions import SessionTransactions, Transactions
from stream_storage.sqlite.database import Database

Result = TypeVar("Result")


@contextmanager
def open_transactions(directory: Path) -> Iterator[SessionTransactions]:
    database = Database.open(directory)
    try:
        transactions = SessionTransactions(database, on_fatal=database.distrust)
        try:
            yield transactions
        finally:
            transactions.close()
    finally:
        database.close()


class WatchedTransactions:
    """Others, with hooks: before and after a read, between the work and the commit of a write, and after that."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self.on_read: Callable[[], None] = lambda: None
        self.after_read: Callable[[], None] = lambda: None
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.read_count = self.write_count = 0

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        self.write_count += 1

        def watched(connection: sqlite3.Connection) -> Result:
            result = work(connection)
            self.before_commit()
            return result

        result = self._transactions.write(watched)
        self.after_commit()
        return result

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        self.read_count += 1
        self.on_read()
        result = self._transactions.read(work)
        self.after_read()
        return result


def once(action: Callable[[], None]) -> Callable[[], None]:
    """A hook that acts the first time only."""
    left = [action]
    return lambda: left.pop()() if left else None
