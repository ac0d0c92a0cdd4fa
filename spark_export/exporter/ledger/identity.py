"""The part of the ledger about the consumer (the name under which the node saves indexes) and the folder of a table."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy import Select, insert, inspect, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from spark_export.exporter.ledger.schema import exports, places


class IdentityPart:
    """The methods of `Ledger` about the table's identity."""

    def _writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        raise NotImplementedError

    async def _all(self, statement: Select[Any]) -> list[Any]:
        raise NotImplementedError

    async def load_place(self) -> str | None:
        async with self._writing() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table(places.name)):
                return None
            return (await connection.execute(select(places.c.path))).scalar()

    async def record_place(self, path: str) -> None:
        async with self._writing() as connection:
            await _save_place(connection, path)

    async def record_adoption(self, client_id: str, path: str) -> None:
        """Records another client id for the saved indexes of the table, and the export's folder, in one transaction."""
        async with self._writing() as connection:
            await connection.execute(update(exports).values(client_id=client_id))
            await _save_place(connection, path)


async def _save_place(connection: AsyncConnection, path: str) -> None:
    await connection.run_sync(lambda sync: places.create(sync, checkfirst=True))
    if (await connection.execute(update(places).values(path=path))).rowcount == 0:
        await connection.execute(insert(places).values(id=1, path=path))
