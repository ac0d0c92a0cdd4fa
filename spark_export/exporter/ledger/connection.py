"""Transactions of the ledger (the record of all runs of an export), and the translation of database errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from spark_export.exporter.errors import LedgerError

BUSY_TIMEOUT_MS = 5_000


class Copy(Protocol):
    """The copy of a ledger in a store. If the copy and the ledger's file differ, the copy is right."""

    def fetch(self) -> bool:
        """Replaces the ledger's file by the copy. Returns False, and changes nothing, if there is no copy."""
        ...

    def check(self) -> None:
        """Checks that the copy is as this exporter left it. Repeats a `save` that failed before.

        Raises TakenOver if another exporter changed the copy; LedgerError if the store does not answer.
        """
        ...

    def save(self) -> None:
        """Replaces the copy by the ledger's file. Raises the same errors as `check`."""
        ...


@asynccontextmanager
async def mapped(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Opens a transaction for the `with` block. Database errors in the block become LedgerErrors."""
    try:
        async with engine.begin() as connection:
            yield connection
    except OSError as error:
        raise LedgerError(
            f"the ledger {engine.url.database} on {engine.url.host} cannot be reached: {error}"
        ) from error
    except DBAPIError as error:
        hint = "; free space and run again" if is_full(error) else ""
        raise LedgerError(f"the ledger {engine.url.database}: {error.orig}{hint}") from error


def is_full(error: DBAPIError) -> bool:
    name = getattr(error.orig, "sqlite_errorname", "")
    return name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR_WRITE")


def set_pragmas(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    # A transaction ends when its journal is removed. FULL does not sync that removal: a power cut could undo a
    # transaction although the table already has the files of the transaction. EXTRA also syncs the folder.
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=1", "synchronous=EXTRA"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
