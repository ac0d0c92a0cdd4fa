"""A disk with little room under a server in the test's own process: SQLite's limit on the pages of a database."""

from __future__ import annotations

import pytest

from stream_storage.sqlite import database as database_module
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.session import SqliteSession

ROOMY_PAGES = 1_000_000


class LimitedDisk:
    """The room of a server's database, in pages of 4 KiB."""

    def __init__(self) -> None:
        self.sessions: list[SqliteSession] = []

    def free(self) -> None:
        """Makes room in the databases that are open, and in those that are opened later."""
        database_module.PRAGMAS["max_page_count"] = ROOMY_PAGES
        for session in self.sessions:
            if not session.closed:
                session.execute(f"PRAGMA max_page_count={ROOMY_PAGES}")


def limit_disk(monkeypatch: pytest.MonkeyPatch, pages: int = 100) -> LimitedDisk:
    """Leaves room for so many pages to each database that is opened from now on."""
    disk = LimitedDisk()
    make_session = Database.session

    def session(self: Database) -> SqliteSession:
        disk.sessions.append(make_session(self))
        return disk.sessions[-1]

    monkeypatch.setitem(database_module.PRAGMAS, "max_page_count", pages)
    monkeypatch.setattr(Database, "session", session)
    return disk
