"""Checks that the table and the ledger of an export agree, before a command changes the table or the ledger.

The ledger is the record of all runs. A table without its link or log would look empty. A ledger that was restored from
an older copy lacks some rows of the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import RunFile
from spark_export.exporter.tables.layout import Layout
from spark_export.exporter.tables.table import Table
from spark_export.exporter.tables.table_link import LEDGER_PUT_BACK, settle_link

UNKNOWN_RUN = f"the table has it, and the ledger does not know: {LEDGER_PUT_BACK}"


async def settle_table(layout: Layout, ledger: Ledger, table: Table, *, repairing: bool = False) -> None:
    """Creates the table of a new export, or checks the link or log of an existing table. Raises ExportErrors.

    The lost link of a plain Parquet table is made again from the ledger. With `repairing`, files may be missing.
    """
    current, unfinished = await ledger.current_generation(), await ledger.find_open_generation()
    files = await ledger.load_files(current)
    number = unfinished[0] if unfinished else None
    latest_run, latest_generation = await ledger.load_highest()
    if ledger.identity.format == "parquet" and layout.store is None:
        expected = [] if repairing else files
        await asyncio.to_thread(settle_link, layout, current, number, expected, latest=latest_generation)
    else:
        await _settle_log(table, files, current, number)
    if (there := await asyncio.to_thread(table.latest_run)) > latest_run:
        # Nothing may be changed or removed with such a ledger, so this is checked before everything else.
        raise ExportMismatch(f"run {there}: {UNKNOWN_RUN}")


async def _settle_log(table: Table, files: Sequence[RunFile], current: int, number: int | None) -> None:
    """Creates a table with a log, or checks that an existing table has its log and one of two expected generations.

    number: the generation that an unfinished compaction or repair makes, or None.
    """
    lost = await asyncio.to_thread(table.missing) if files else None
    if lost is not None:
        raise ExportMismatch(
            f"{lost} is missing, and the ledger has {len(files)} files of the table: put it back, or export into "
            "another folder"
        )
    await asyncio.to_thread(table.prepare)
    there = await asyncio.to_thread(lambda: table.generation)
    if there not in (current, number):
        what = f"the table has generation {there}, and the ledger {current}: "
        if there > current:
            raise ExportMismatch(what + LEDGER_PUT_BACK)
        raise ExportMismatch(f"{what}{_TABLE_PUT_BACK}")


async def check_runs(table: Table, ledger: Ledger) -> None:
    """Raises ExportMismatch if the table has a later run than the ledger, or lacks the ledger's latest run.

    With a ledger that is older than the table, a run exports messages again, and a compaction leaves out rows.
    """
    latest, counted = await asyncio.to_thread(table.latest_run), await ledger.latest_counted()
    if latest > counted:
        raise ExportMismatch(f"run {latest}: {UNKNOWN_RUN}")
    if latest < counted and table.keeps_latest_run:
        raise ExportMismatch(f"run {counted}: the ledger has it, and the table does not: {_TABLE_PUT_BACK}")


_TABLE_PUT_BACK = "the table was put back to an earlier state; put the whole folder back, or export into another one"
