"""The part of the ledger about generations (versions of the whole exported table) and about lost rows."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Select, delete, func, insert, inspect, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from spark_export.exporter.ledger.schema import OPEN, files, generations, losses, runs
from spark_export.exporter.model import Loss, RunFile

LOSS_FIELDS = tuple(field.name for field in fields(Loss))


class GenerationsPart:
    """The methods of `Ledger` about generations (versions of the table) and lost rows.

    `Ledger` inherits from this class and implements the access to the database.
    """

    def _writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        raise NotImplementedError

    async def _all(self, statement: Select[Any]) -> list[Any]:
        raise NotImplementedError

    async def current_generation(self) -> int:
        """Returns the number of the latest published generation (version of the table), according to the ledger."""
        statement = select(func.max(generations.c.id)).where(generations.c.state == "published")
        return int((await self._all(statement))[0][0])

    async def find_open_generation(self) -> tuple[int, str] | None:
        """Returns the number and state of the generation (version of the table) that is not published yet.

        An unfinished compaction or repair makes this generation. The state is planned or written. Returns None if no
        compaction or repair is unfinished.
        """
        statement = select(generations.c.id, generations.c.state).where(generations.c.state.in_(OPEN))
        found = await self._all(statement)
        return (int(found[0][0]), str(found[0][1])) if found else None

    async def begin_generation(self, now_us: int) -> int:
        """Adds the next generation (version of the table), in state planned. Returns its number."""
        async with self._writing() as connection:
            result = await connection.execute(insert(generations).values(state="planned", created_us=now_us))
            key = result.inserted_primary_key
            assert key is not None
            return int(key[0])

    async def record_generation(
        self, generation: int, written: Iterable[RunFile], lost: Iterable[Loss] = (), now_us: int = 0
    ) -> None:
        """Records the files of a generation (version of the table) and sets its state to written, atomically.

        written: all files of the generation.
        lost: exported indexes that are no longer in the generation.
        now_us: the time of the loss for the record, in microseconds since 1970.
        """
        rows = [{"generation": generation, "run_id": each.run_id, **asdict(each.entry)} for each in written]
        gone = [{"generation": generation, "noted_us": now_us, **asdict(each)} for each in lost]
        async with self._writing() as connection:
            if rows:
                await connection.execute(insert(files), rows)
            if gone:
                await connection.run_sync(lambda sync: losses.create(sync, checkfirst=True))
                await connection.execute(insert(losses), gone)
            await connection.execute(update(generations).where(generations.c.id == generation).values(state="written"))

    async def publish_generation(self, generation: int) -> None:
        """Records that readers see this generation (version of the table).

        Removes the records of earlier generations' files.
        """
        async with self._writing() as connection:
            await connection.execute(
                update(generations).where(generations.c.id == generation).values(state="published")
            )
            await connection.execute(delete(files).where(files.c.generation < generation))

    async def drop_generation(self, generation: int) -> None:
        """Removes the files and losses of an unpublished generation (version of the table), and sets it to dropped.

        No later generation gets its number.
        """
        async with self._writing() as connection:
            await connection.execute(delete(files).where(files.c.generation == generation))
            if await _has_losses(connection):
                await connection.execute(delete(losses).where(losses.c.generation == generation))
            await connection.execute(update(generations).where(generations.c.id == generation).values(state="dropped"))

    async def load_highest(self) -> tuple[int, int]:
        """Returns the highest id of a run, 0 if there is none, and the highest number of a generation, in any state."""
        found = await self._all(select(func.max(runs.c.id), select(func.max(generations.c.id)).scalar_subquery()))
        return int(found[0][0] or 0), int(found[0][1])


async def find_losses(connection: AsyncConnection, generation: int) -> list[Loss]:
    """Returns the exported indexes that repairs gave up, in this and earlier generations (versions of the table)."""
    if not await _has_losses(connection):
        return []
    columns = [losses.c[field] for field in LOSS_FIELDS]
    found = await connection.execute(select(*columns).where(losses.c.generation <= generation))
    return [Loss(*row) for row in found.all()]


async def _has_losses(connection: AsyncConnection) -> bool:
    return bool(await connection.run_sync(lambda sync: inspect(sync).has_table(losses.name)))
