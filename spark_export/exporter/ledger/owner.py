"""The owner of a ledger that no file lock protects: the exporter that took over the ledger last.

Each change first checks, in the same transaction, that the exporter is still the owner.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from sqlalchemy import Connection, delete, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from spark_export.exporter.errors import TakenOver
from spark_export.exporter.ledger.schema import owners


async def take_over(connection: AsyncConnection, owner: str, now_us: int) -> None:
    """Makes the exporter with the random id `owner` the owner of the ledger."""
    # Ledgers of earlier versions lack the table.
    await connection.run_sync(_make_table)
    await connection.execute(delete(owners))
    values = {"host": socket.gethostname(), "process": os.getpid(), "since_us": now_us}
    await connection.execute(insert(owners).values(id=1, owner=owner, **values))


def _make_table(connection: Connection) -> None:
    if not inspect(connection).has_table(owners.name, schema=_schema_of(connection)):
        owners.create(connection)


def _schema_of(connection: Connection) -> str | None:
    chosen: dict[Any, str] = connection.get_execution_options().get("schema_translate_map") or {}
    return chosen.get(None)


async def check_owner(connection: AsyncConnection, owner: str) -> None:
    """Raises TakenOver if another exporter owns the ledger now.

    Locks the row of the owner in PostgreSQL, so that no other exporter takes over the ledger during the transaction.
    """
    statement = select(owners.c.owner, owners.c.host, owners.c.process).with_for_update()
    found = (await connection.execute(statement)).one_or_none()
    if found is None or found[0] != owner:
        who = f" (process {found[2]} on {found[1]})" if found is not None else ""
        raise TakenOver(f"another exporter{who} has taken over the table; this one publishes nothing more")
