"""Opens an export: its local folder, its ledger (the record of all runs), and the store of its table, if any.

A lock of the folder protects a table in a folder. For a table on a store, the exporter that opened the ledger last is
the only one that can change the ledger. The next change by any other exporter raises TakenOver.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_export.exporter.address import TableAddress
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.ledger.ledger import Ledger, NewIdentity, open_ledger
from spark_export.exporter.ledger.store_ledger import LEDGER_OBJECT, StoredLedger
from spark_export.exporter.tables.layout import ExportLock, Layout
from spark_export.exporter.tables.table_mark import STORED, TableMark, check_no_table
from spark_export.store.open import open_store
from spark_export.store.store import Store


@dataclass(frozen=True)
class Workplace:
    """An open export: its local paths and its ledger."""

    layout: Layout
    ledger: Ledger


@asynccontextmanager
async def open_workplace(
    address: TableAddress, *, now_us: int, identity: NewIdentity | None = None, writes: bool = True
) -> AsyncIterator[Workplace]:
    """Opens an export. With `writes`, no other process can change the export at the same time.

    identity: the identity of a new export; None opens only an existing export.
    Raises ExportInUse, ExportMismatch, LedgerError, StoreError.
    """
    async with AsyncExitStack() as stack:
        if address.place.is_local:
            layout = Layout(address.place.folder)
            if identity is None and address.ledger is None and not layout.ledger.exists():
                raise ExportMismatch(f"{layout.folder} holds no export: {layout.ledger.name} is missing")
            if writes:
                layout.make()
                stack.enter_context(ExportLock(layout.folder))
        else:
            # No part of the table is in this folder. If the exporter is killed, nobody reads the folder again.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-node-export-"))
            layout = Layout(Path(folder), open_store(address.place, address.options))
            layout.make()
        if address.ledger is not None:
            from spark_export.exporter.ledger.database import open_database_ledger

            opening = open_database_ledger(address.ledger, layout, identity=identity, now_us=now_us, writes=writes)
            yield Workplace(layout, await stack.enter_async_context(opening))
            return
        if layout.store is None:
            if identity is not None:
                layout.check_ledger()
            opening = open_ledger(layout.ledger, identity=identity, now_us=now_us)
            yield Workplace(layout, await stack.enter_async_context(opening))
            return
        ledger = await stack.enter_async_context(_open_stored(layout, layout.store, identity, now_us))
        if writes:
            await ledger.take_over(now_us)
        yield Workplace(layout, ledger)


@asynccontextmanager
async def _open_stored(
    layout: Layout, store: Store, identity: NewIdentity | None, now_us: int
) -> AsyncIterator[Ledger]:
    copy = StoredLedger(store, layout.ledger)
    is_there = await asyncio.to_thread(copy.fetch)
    if not is_there and identity is None:
        raise ExportMismatch(f"{store.place} holds no export: {LEDGER_OBJECT} is missing")
    mark = TableMark.of(layout)
    table_id = None
    if not is_there and identity is not None:
        await asyncio.to_thread(check_no_table, layout, LEDGER_OBJECT)
        table_id = await asyncio.to_thread(mark.settle, uuid.uuid4().hex, identity[0], STORED, now_us=now_us)
    async with open_ledger(
        layout.ledger, identity=identity, now_us=now_us, table_id=table_id, copy=copy, place=str(store.place)
    ) as ledger:
        await asyncio.to_thread(mark.check, ledger.identity.table_id)
        yield ledger
