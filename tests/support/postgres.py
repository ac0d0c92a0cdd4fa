"""PostgreSQL servers for tests: `bench.postgres_server`, which skips where PostgreSQL is not installed."""

from __future__ import annotations

import pytest

from bench import postgres_server


class PostgresServer(postgres_server.PostgresServer):
    """The same server, for tests."""

    def __init__(self, settings: dict[str, str] | None = None, copy_of: PostgresServer | None = None) -> None:
        if postgres_server.find_programs() is None:
            pytest.skip("PostgreSQL is not installed")
        super().__init__(settings, copy_of)
