"""MortalDatabase: a database on PostgreSQL whose node may end as a killed one does."""

from __future__ import annotations

from typing import Any

from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.session import PostgresSession


class MortalDatabase(PostgresDatabase):
    """A PostgresDatabase that ends the connections of all its sessions when it is closed. The kernel does that for a
    node that was killed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._opened: list[PostgresSession] = []

    def session(self) -> PostgresSession:
        self._opened.append(super().session())
        return self._opened[-1]

    def read_session(self) -> PostgresSession:
        self._opened.append(super().read_session())
        return self._opened[-1]

    def close(self) -> None:
        for session in self._opened:
            session.close()
        super().close()
