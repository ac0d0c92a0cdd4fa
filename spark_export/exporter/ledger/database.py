"""Opens the ledger (the record of all runs of an export) in the database of an SQLAlchemy URL: SQLite or PostgreSQL.

In PostgreSQL, each ledger has its own schema. An exporter holds an advisory lock for the schema while it is open, and
records itself as the owner of the ledger. If the exporter loses the lock and another exporter becomes the owner, the
next change by the first exporter raises TakenOver.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from ockam.files.durable_files import give_to_folder
from spark_export.exporter.errors import ExportInUse, ExportMismatch, ExtraMissing
from spark_export.exporter.ledger.connection import mapped
from spark_export.exporter.ledger.ledger import (
    ExportIdentity,
    Ledger,
    NewIdentity,
    load_identity,
    make_ledger,
    open_ledger,
)
from spark_export.exporter.ledger.schema import LEDGER_VERSION, exports
from spark_export.exporter.ledger.url import SQLITE, parse_url
from spark_export.exporter.tables.layout import ExportLock, Layout
from spark_export.exporter.tables.table_mark import TableMark, check_no_table, check_place_of, name_ledger
from spark_export.store.place import StoreLocation

SCHEMA: Final = "stream_node_export"
CONNECT_S: Final = 10


@asynccontextmanager
async def open_database_ledger(
    address: str, layout: Layout, *, identity: NewIdentity | None, now_us: int, writes: bool
) -> AsyncIterator[Ledger]:
    """Opens the ledger at the URL `address`. With `writes`, no other exporter can change it at the same time.

    Raises LedgerError, ExportInUse, ExtraMissing, StoreError, and ExportMismatch if the table has another ledger.
    """
    url = parse_url(address)
    mark = TableMark.of(layout)

    async def settle() -> str | None:
        if identity is None:
            return None
        await asyncio.to_thread(check_no_table, layout, str(url.database))
        return await asyncio.to_thread(mark.settle, uuid.uuid4().hex, identity[0], name_ledger(url), now_us=now_us)

    async with AsyncExitStack() as stack:
        if url.drivername in SQLITE:
            path = Path(str(url.database))
            _check_only_ledger(layout, path)
            if writes:
                stack.enter_context(ExportLock(path.parent, f"{path.name}.lock"))
            table_id = await settle() if _is_new(path) else None
            opening = open_ledger(path, identity=identity, now_us=now_us, table_id=table_id, place=str(layout.place))
            ledger = await stack.enter_async_context(opening)
            give_to_folder(path, path.parent)
        else:
            _check_only_ledger(layout, None)
            opening = _open_postgres(url, layout.place, identity, now_us, settle, writes)
            ledger = await stack.enter_async_context(opening)
        await _check_mark(layout, mark, ledger, name_ledger(url), now_us=now_us, writes=writes)
        if writes:
            await ledger.take_over(now_us)
        yield ledger


def _is_new(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _check_only_ledger(layout: Layout, path: Path | None) -> None:
    if (
        layout.store is None
        and layout.ledger.exists()
        and not (path and path.exists() and path.samefile(layout.ledger))
    ):
        raise ExportMismatch(f"the table in {layout.folder} has its ledger in {layout.ledger.name}: leave --ledger out")


async def _check_mark(layout: Layout, mark: TableMark, ledger: Ledger, name: str, *, now_us: int, writes: bool) -> None:
    identity = ledger.identity
    if await asyncio.to_thread(mark.check, identity.table_id) or not writes:
        return
    if layout.store is not None:
        raise ExportMismatch(
            f"{layout.place} holds no table, and the ledger is of the table {identity.table_id}: name another ledger "
            "by --ledger, or the address of its table"
        )
    check_place_of(layout, await ledger.load_place())
    await asyncio.to_thread(mark.settle, identity.table_id, identity.format, name, now_us=now_us)


@asynccontextmanager
async def _open_postgres(
    url: URL,
    place: StoreLocation,
    identity: NewIdentity | None,
    now_us: int,
    settle: Callable[[], Awaitable[str | None]],
    writes: bool,
) -> AsyncIterator[Ledger]:
    schema = str(url.query.get("schema", SCHEMA))
    plain = url.difference_update_query(["schema"]).set(drivername="postgresql+asyncpg")
    try:
        engine = create_async_engine(
            plain,
            # All reads of a transaction see the same state, as in SQLite.
            isolation_level="REPEATABLE READ",
            connect_args={"timeout": CONNECT_S, "server_settings": {"search_path": schema}},
        )
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"a ledger in PostgreSQL needs the extra `postgres` ({error.name}): pip install 'stream-node[postgres]'"
        ) from error
    try:
        async with AsyncExitStack() as stack:
            if writes:
                await stack.enter_async_context(_locked(engine, schema))
            async with mapped(engine) as connection:
                found = await _ensure(connection, schema, place, identity, now_us, settle)
            if identity is not None and found.format != identity[0]:
                raise ExportMismatch(
                    f"the ledger is of a table in the format {found.format}, not {identity[0]}; say --format "
                    f"{found.format}, or use another schema"
                )
            yield Ledger(engine, found)
    finally:
        await engine.dispose()


@asynccontextmanager
async def _locked(engine: AsyncEngine, schema: str) -> AsyncIterator[None]:
    """Holds the advisory lock of a schema in a separate connection. Raises ExportInUse if another exporter holds it."""
    key = int.from_bytes(hashlib.sha256(f"stream-node export {schema}".encode()).digest()[:8], signed=True)
    async with mapped(engine) as connection:
        is_ours = (await connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key})).scalar_one()
        if not is_ours:
            raise ExportInUse(f"the ledger {schema} in {engine.url.database} is in use by another exporter")
        # The lock belongs to the connection; the end of the transaction does not end it.
        await connection.commit()
        try:
            yield
        finally:
            await connection.invalidate()


async def _ensure(
    connection: AsyncConnection,
    schema: str,
    place: StoreLocation,
    identity: NewIdentity | None,
    now_us: int,
    settle: Callable[[], Awaitable[str | None]],
) -> ExportIdentity:
    """Makes the tables of a new ledger, or checks the version of an existing ledger. Returns the export's identity."""
    has_tables = await connection.run_sync(lambda sync: inspect(sync).has_table(exports.name, schema=schema))
    mark = f"stream-node export ledger, version {LEDGER_VERSION}"
    if not has_tables:
        if identity is None:
            raise ExportMismatch(f"{place} has no ledger in the schema {schema} of {connection.engine.url.database}")
        table_id = await settle()
        await connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{_name(schema)}"'))
        await connection.execute(text(f"COMMENT ON SCHEMA \"{_name(schema)}\" IS '{mark}'"))
        await make_ledger(connection, identity, now_us, table_id)
    statement = text("SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = :schema")
    said = (await connection.execute(statement, {"schema": schema})).scalar_one()
    if said != mark:
        raise ExportMismatch(f"the schema {schema} is not a ledger of this version: it says {said!r}, not {mark!r}")
    return await load_identity(connection)


def _name(schema: str) -> str:
    """Returns the name of a schema after a check, since the name becomes a part of SQL text. Raises ExportMismatch."""
    if not schema.isidentifier() or not schema.isascii():
        raise ExportMismatch(f"the schema {schema!r} of --ledger is no plain name")
    return schema
