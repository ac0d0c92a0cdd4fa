"""The ledger of an export: a database that records all runs, their index ranges and their files.

This module opens a ledger in an SQLite file; `database.py` opens one in PostgreSQL. A method that changes the
ledger returns when the change is on disk. One exporter at a time changes the ledger: a file lock
(`tables/layout.py::ExportLock`) or `Ledger.take_over` ensures this. Other processes can read the ledger meanwhile.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import Select, delete, event, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from spark_export.exporter.errors import ExportMismatch, LedgerError
from spark_export.exporter.ledger.connection import Copy, mapped, set_pragmas
from spark_export.exporter.ledger.generations import GenerationsPart, find_losses
from spark_export.exporter.ledger.identity import IdentityPart
from spark_export.exporter.ledger.owner import check_owner, take_over
from spark_export.exporter.ledger.schema import (
    APPLICATION_ID,
    LEDGER_VERSION,
    OPEN,
    exports,
    files,
    generations,
    metadata,
    ranges,
    runs,
)
from spark_export.exporter.model import Account, Exported, FileEntry, Range, Run, RunFile, RunState
from spark_export.exporter.runs.run_machine import COUNTED, ENDED, check_transition
from spark_export.exporter.runs.waiting import to_its_end

FIRST_GENERATION = 1
RANGE_FIELDS = tuple(field.name for field in fields(Range))
FILE_FIELDS = tuple(field.name for field in fields(FileEntry))
RUN_FIELDS = tuple(field.name for field in fields(Run))[1:]
"""The fields of `Run` that are columns of the same name. The column of `run_id` is `runs.id`."""


NewIdentity: TypeAlias = tuple[str, Callable[[str], str]]
"""The table format of a new export, and a function that makes the client id from the table's id."""


@dataclass(frozen=True)
class ExportIdentity:
    """The identity of an export folder.

    table_id: a random name, made once; also the name of the export in the log of a Delta or Iceberg table.
    format: parquet, delta or iceberg.
    client_id: the client id under which the node keeps the saved indexes of the export.
    """

    table_id: str
    format: str
    client_id: str


_RANGES = select(ranges.c.run_id, *(ranges.c[field] for field in RANGE_FIELDS)).join(runs).order_by(ranges.c.run_id)
_FILES = (
    select(files.c.run_id, *(files.c[field] for field in FILE_FIELDS))
    .join(runs, runs.c.id == files.c.run_id)
    .order_by(files.c.run_id, files.c.path)
)


class Ledger(GenerationsPart, IdentityPart):
    """The open database with the record of all runs of an export. `open_ledger` makes it."""

    def __init__(self, engine: AsyncEngine, identity: ExportIdentity, copy: Copy | None = None) -> None:
        """copy: the ledger's copy in a store, which each change replaces, or None."""
        self._engine = engine
        self.identity = identity
        self._copy = copy
        self._owner: str | None = None
        self._turn = asyncio.Lock()

    async def take_over(self, now_us: int) -> None:
        """Makes this process the only one that can change the ledger: each later change by another process raises
        TakenOver."""
        owner = uuid.uuid4().hex
        async with self._writing() as connection:
            await take_over(connection, owner, now_us)
        self._owner = owner

    async def check_owner(self) -> None:
        """Raises TakenOver if another process has taken over the ledger, and repeats a `save` of the copy that failed
        before."""
        if self._owner is None:
            return
        async with self._turn:
            if self._copy is not None:
                await to_its_end(asyncio.to_thread(self._copy.check))
            async with mapped(self._engine) as connection:
                await check_owner(connection, self._owner)

    async def begin_run(self, planned: Iterable[Range], now_us: int) -> int:
        """Adds a run in state planned. Returns its id. Raises LedgerError if a compaction or repair is unfinished."""
        async with self._writing() as connection:
            # A rewrite that is published later would leave out the files of a run that it does not know.
            if (await connection.execute(select(generations.c.id).where(generations.c.state.in_(OPEN)))).first():
                raise LedgerError(
                    "a compaction or repair is unfinished: `stream-node export compact` finishes it first"
                )
            result = await connection.execute(insert(runs).values(state=RunState.PLANNED, started_us=now_us))
            key = result.inserted_primary_key
            assert key is not None
            run_id = int(key[0])
            rows = [{"run_id": run_id, **asdict(each)} for each in planned]
            await connection.execute(insert(ranges), rows)
            lost = sum(row["lost"] for row in rows)
            await connection.execute(update(runs).where(runs.c.id == run_id).values(lost=lost))
        return run_id

    async def advance(self, run_id: int, to: RunState, *, now_us: int | None = None, error: str | None = None) -> None:
        """Sets the state of a run. `now_us` and `error` are of a run that ends. Raises IllegalTransition."""
        async with self._writing() as connection:
            await _advance(connection, run_id, to, {"finished_us": now_us, "error": error})

    async def record_written(
        self, run_id: int, generation: int, written: Iterable[FileEntry], without: Iterable[str] = ()
    ) -> None:
        """Records the files of a run and sets its state to written, atomically. Raises IllegalTransition.

        without: planned streams that could not be read. A later run exports their ranges.
        """
        rows = [{"generation": generation, "run_id": run_id, **asdict(each)} for each in written]
        totals = {
            "rows": sum(row["rows"] for row in rows),
            "data_bytes": sum(row["data_bytes"] for row in rows),
            "file_bytes": sum(row["file_bytes"] for row in rows),
            "files": len(rows),
        }
        async with self._writing() as connection:
            if rows:
                await connection.execute(insert(files), rows)
            for stream in without:
                await connection.execute(delete(ranges).where(ranges.c.run_id == run_id, ranges.c.stream == stream))
            lost = select(func.coalesce(func.sum(ranges.c.lost), 0)).where(ranges.c.run_id == run_id)
            totals["lost"] = int((await connection.execute(lost)).scalar_one())
            await _advance(connection, run_id, RunState.WRITTEN, totals)

    async def record_abandoned(self, run_id: int, now_us: int, error: str) -> None:
        """Abandons a run without rows in the table, and removes its files from the ledger. Raises IllegalTransition."""
        async with self._writing() as connection:
            await connection.execute(delete(files).where(files.c.run_id == run_id))
            await _advance(connection, run_id, RunState.ABANDONED, {"finished_us": now_us, "error": error})

    async def load_exported(self, *, only_saved: bool = False) -> dict[tuple[str, int], Exported]:
        """Returns the end of the exported messages, by stream and partition, of the newest stream of each name.

        only_saved: whether to leave out published runs whose ends the node has perhaps not saved yet.
        """
        states = {RunState.SAVED} if only_saved else COUNTED
        statement = (
            select(ranges.c.stream, ranges.c.partition, ranges.c.era, ranges.c.made_us, func.max(ranges.c.end_index))
            .join(runs)
            .where(runs.c.state.in_(states))
            .group_by(ranges.c.stream, ranges.c.partition, ranges.c.era, ranges.c.made_us)
            .order_by(ranges.c.era)
        )
        return {(row[0], row[1]): Exported(row[2], row[3], row[4]) for row in await self._all(statement)}

    async def load_ranges(self, run_id: int) -> list[Range]:
        return [each for _, each in _ranges(await self._all(_RANGES.where(ranges.c.run_id == run_id)))]

    async def load_runs(self, limit: int | None = None) -> list[Run]:
        """Returns at most `limit` runs, the latest first."""
        columns = [runs.c.id, *(runs.c[field] for field in RUN_FIELDS)]
        found = await self._all(select(*columns).order_by(runs.c.id.desc()).limit(limit))
        return [Run(row[0], RunState(row[1]), *row[2:]) for row in found]

    async def latest_counted(self) -> int:
        found = await self._all(select(func.max(runs.c.id)).where(runs.c.state.in_(COUNTED)))
        return int(found[0][0] or 0)

    async def load_unfinished(self) -> list[Run]:
        """Returns the runs that are neither saved nor abandoned, the earliest first."""
        columns = [runs.c.id, *(runs.c[field] for field in RUN_FIELDS)]
        found = await self._all(select(*columns).where(runs.c.state.not_in(ENDED)).order_by(runs.c.id))
        return [Run(row[0], RunState(row[1]), *row[2:]) for row in found]

    async def load_run_files(self, run_id: int) -> list[FileEntry]:
        columns = [files.c[field] for field in FILE_FIELDS]
        statement = select(*columns).where(files.c.run_id == run_id).order_by(files.c.id)
        return [FileEntry(*row) for row in await self._all(statement)]

    async def load_files(self, generation: int) -> list[RunFile]:
        """Returns the files of all runs in state published or saved, in one generation (version) of the table."""
        return _files(await self._all(_FILES.where(files.c.generation == generation, runs.c.state.in_(COUNTED))))

    async def load_account(self, generation: int) -> Account:
        """Returns the ledger's contents at one moment, for one generation (version) of the table."""
        if self._copy is not None and self._owner is None:
            # This process only reads, and an exporter may have changed the copy.
            await self._engine.dispose()
            await asyncio.to_thread(self._copy.fetch)
        in_generation = _FILES.where(files.c.generation == generation)
        async with mapped(self._engine) as connection:
            if self._engine.dialect.name == "sqlite":
                # The driver begins a transaction only before a write, but these reads must see one state.
                await connection.execute(text("BEGIN"))
            taken = await connection.execute(_RANGES.where(runs.c.state.in_(COUNTED)))
            counted = await connection.execute(in_generation.where(runs.c.state.in_(COUNTED)))
            pending = await connection.execute(in_generation.where(runs.c.state == RunState.WRITTEN))
            unfinished = await connection.execute(select(runs.c.id).where(runs.c.state.not_in(ENDED)))
            rewriting = await connection.execute(select(generations.c.id).where(generations.c.state.in_(OPEN)))
            return Account(
                _ranges(taken.all()),
                _files(counted.all()),
                _files(pending.all()),
                frozenset(row[0] for row in unfinished.all()),
                await find_losses(connection, generation),
                rewriting.scalar(),
            )

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        async with self._turn:
            async with mapped(self._engine) as connection:
                if self._owner is not None:
                    await check_owner(connection, self._owner)
                yield connection
            if self._copy is not None:
                await to_its_end(asyncio.to_thread(self._copy.save))

    async def _all(self, statement: Select[Any]) -> list[Any]:
        async with mapped(self._engine) as connection:
            return list((await connection.execute(statement)).all())


@asynccontextmanager
async def open_ledger(
    path: Path,
    *,
    identity: NewIdentity | None = None,
    now_us: int = 0,
    table_id: str | None = None,
    copy: Copy | None = None,
    place: str | None = None,
) -> AsyncIterator[Ledger]:
    """Opens the ledger in this file.

    Raises LedgerError, and ExportMismatch if there is no ledger and `identity` is None, if the ledger has another
    format or a later version, or if the file is another program's database.

    identity, now_us, table_id: the identity, creation time and table id (None: random) of a new ledger.
    place: the table's address for error messages; None for the file's folder.
    """
    if identity is None and not await asyncio.to_thread(path.exists):
        raise ExportMismatch(f"{path.parent} holds no export: {path.name} is missing")
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    event.listen(engine.sync_engine, "connect", set_pragmas)
    try:
        async with mapped(engine) as connection:
            found = await _ensure_schema(connection, path, identity, now_us, table_id)
        if identity is not None and found.format != identity[0]:
            raise ExportMismatch(
                f"{place or path.parent} holds a table in the format {found.format}, not {identity[0]}; "
                f"say --format {found.format}, or export into another folder"
            )
        yield Ledger(engine, found, copy)
    finally:
        await engine.dispose()


async def _ensure_schema(
    connection: AsyncConnection, path: Path, identity: NewIdentity | None, now_us: int, table_id: str | None
) -> ExportIdentity:
    """Creates the tables of a new ledger, or checks an existing ledger."""
    application = (await connection.execute(text("PRAGMA application_id"))).scalar_one()
    version = (await connection.execute(text("PRAGMA user_version"))).scalar_one()
    if application not in (0, APPLICATION_ID):
        raise ExportMismatch(f"{path} is another program's database; export into another folder")
    if version > LEDGER_VERSION:
        raise ExportMismatch(f"{path} was written by a later version ({version}); this one reads {LEDGER_VERSION}")
    if version == 0:
        if identity is None:
            raise ExportMismatch(f"{path.parent} holds no export: its ledger is empty")
        await make_ledger(connection, identity, now_us, table_id)
        await connection.execute(text(f"PRAGMA application_id={APPLICATION_ID}"))
        await connection.execute(text(f"PRAGMA user_version={LEDGER_VERSION}"))
    return await load_identity(connection)


async def make_ledger(
    connection: AsyncConnection, identity: NewIdentity, now_us: int, table_id: str | None = None
) -> None:
    await connection.run_sync(metadata.create_all)
    table_id = table_id or uuid.uuid4().hex
    values = {"table_id": table_id, "format": identity[0], "client_id": identity[1](table_id)}
    await connection.execute(insert(exports).values(id=1, created_us=now_us, **values))
    await connection.execute(insert(generations).values(state="published", created_us=now_us))


async def load_identity(connection: AsyncConnection) -> ExportIdentity:
    row = (await connection.execute(select(exports.c.table_id, exports.c.format, exports.c.client_id))).one()
    return ExportIdentity(*row)


def _ranges(rows: Iterable[Any]) -> list[tuple[int, Range]]:
    return [(row[0], Range(*row[1:])) for row in rows]


def _files(rows: Iterable[Any]) -> list[RunFile]:
    return [RunFile(row[0], FileEntry(*row[1:])) for row in rows]


async def _advance(connection: AsyncConnection, run_id: int, to: RunState, values: Mapping[str, Any]) -> None:
    state = (await connection.execute(select(runs.c.state).where(runs.c.id == run_id))).scalar_one()
    check_transition(RunState(state), to)
    given = {name: value for name, value in values.items() if value is not None}
    await connection.execute(update(runs).where(runs.c.id == run_id).values(state=to, **given))
