"""PostgreSQL servers for tests: `bench.servers.postgres_server`, which skips where PostgreSQL is not installed."""

from __future__ import annotations

import atexit
import secrets
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from bench.servers import postgres_server


class PostgresServer(postgres_server.PostgresServer):
    """The same server, for tests. The servers of one process copy the files that `initdb` made for its first one."""

    def __init__(self, settings: dict[str, str] | None = None, copy_of: PostgresServer | None = None) -> None:
        if postgres_server.find_programs() is None:
            pytest.skip("PostgreSQL is not installed")
        super().__init__(settings, copy_of)

    def _initialize(self) -> None:
        template = Path(_folder_of_template().name) / "data"
        if template.exists():
            _copy(template, self.data)
        else:
            super()._initialize()
            _copy(self.data, template)

    def new_database(self) -> str:
        """Creates a database of a name that no other one has. Returns the name."""
        name = f"test_{secrets.token_hex(4)}"
        self.ask(f"CREATE DATABASE {name}")
        return name


@cache
def _folder_of_template() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="pg-template-")
    atexit.register(folder.cleanup)
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copies a folder with the owners of its files: the server refuses files of somebody else."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
