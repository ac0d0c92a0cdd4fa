"""The part of the ledger about the identity of a table: the consumer that keeps its positions, and its folder.

The consumer is the name under which the node keeps the saved indexes of the export."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy import Select, insert, inspect, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from spark_export.exporter.ledger_schema import exports, places


class IdentityPart:
    """The methods of `Ledger` about the table's identity; `Ledger` has the connections."""

    def _writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        raise NotImplementedError

    async def _all(self, statement: Select[Any]) -> list[Any]:
        raise NotImplementedError

    async def load_place(self) -> str | None:
        """Returns the folder in which the export last worked, or None if no version of the exporter has noted it."""
        async with self._writing() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table(places.name)):
                return None
            return (await connection.execute(select(places.c.path))).scalar()

    async def record_place(self, path: str) -> None:
        """Records the folder in which the export works."""
        async with self._writing() as connection:
            await connection.run_sync(lambda sync: places.create(sync, checkfirst=True))
            if (await connection.execute(update(places).values(path=path))).rowcount == 0:
                await connection.execute(insert(places).values(id=1, path=path))

    async def record_adoption(self, client_id: str, path: str) -> None:
        """Records another consumer for the table, and the folder in which the table is, in one transaction."""
        async with self._writing() as connection:
            await connection.execute(update(exports).values(client_id=client_id))
            await connection.run_sync(lambda sync: places.create(sync, checkfirst=True))
            if (await connection.execute(update(places).values(path=path))).rowcount == 0:
                await connection.execute(insert(places).values(id=1, path=path))
