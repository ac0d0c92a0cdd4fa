"""Parses the URLs of ledgers in databases."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from spark_export.exporter.errors import ExportMismatch

SQLITE: Final = ("sqlite", "sqlite+aiosqlite")
POSTGRES: Final = ("postgresql", "postgresql+asyncpg", "postgres")


def parse_url(address: str) -> URL:
    """Parses the URL of a ledger, and makes the path of an SQLite file absolute.

    Raises ExportMismatch for a URL of another kind, with a message without the URL's password.
    """
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise ExportMismatch(
            "--ledger is no URL: write sqlite+aiosqlite:////PATH or postgresql+asyncpg://USER@HOST/DATABASE?schema=NAME"
        ) from error
    if url.drivername not in (*SQLITE, *POSTGRES):
        raise ExportMismatch(
            f"--ledger {url.drivername}://: a ledger is kept in sqlite+aiosqlite or postgresql+asyncpg"
        )
    if url.drivername in SQLITE and not str(url.database).startswith("/") and url.database:
        return url.set(database=str(Path(str(url.database)).absolute()))
    if url.drivername in SQLITE and url.database in (None, "", ":memory:"):
        raise ExportMismatch("--ledger names no file: write sqlite+aiosqlite:////PATH")
    return url
