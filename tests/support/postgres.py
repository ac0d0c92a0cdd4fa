"""PostgreSQL servers for tests: `bench.servers.postgres_server`, which skips where PostgreSQL is not installed."""

from __future__ import annotations

import secrets

import pytest

from bench.servers import postgres_server


class PostgresServer(postgres_server.PostgresServer):
    """The same server, for tests."""

    def __init__(self, settings: dict[str, str] | None = None, copy_of: PostgresServer | None = None) -> None:
        if postgres_server.find_programs() is None:
            pytest.skip("PostgreSQL is not installed")
        super().__init__(settings, copy_of)

    def new_database(self) -> str:
        """Creates a database of a name that no other one has. Returns the name."""
        name = f"test_{secrets.token_hex(4)}"
        self.ask(f"CREATE DATABASE {name}")
        return name
