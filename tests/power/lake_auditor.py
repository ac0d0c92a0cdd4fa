"""Judges an export's folder on a disk that a power cut left. It needs aiosqlite, and pyarrow, which reads the table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.runs.job import open_for_reading
from spark_export.exporter.runs.run_machine import Recovery, RunFiles, recover
from spark_export.exporter.tables.parquet_table import ParquetTable
from tests.power.load import parse
from tests.spark_export.exporter.export_world import rows_of


def check_lake(
    folder: Path, exported: Sequence[tuple[str, int, int]], confirmed: Mapping[tuple[str, int], tuple[int, int]]
) -> None:
    """Every row once and true, all that was exported there, and a ledger that the next run can go on from.

    exported: stream, first and next index of each finished run. confirmed: incarnation and number by stream and index.
    """
    table = folder / "messages"
    # Without files pyarrow knows no columns.
    rows = rows_of(table) if any(table.resolve().rglob("*.parquet")) else []
    places = [(stream, index) for stream, _, index, _ in rows]
    assert len(places) == len(set(places)), "a message is in the table twice"
    for stream, _, index, data in rows:
        name, incarnation, number = parse(data)
        assert name == stream
        assert confirmed.get((stream, index), (incarnation, number)) == (incarnation, number), (
            f"{stream}/{index} is another message"
        )
    for stream, first, end in exported:
        missing = {(stream, index) for index in range(first, end)} - set(places)
        assert not missing, f"exported, and not in the table: {sorted(missing)[:5]}"
    try:
        asyncio.run(_check_ledger(folder, rows != []))
    except ExportMismatch:
        assert not rows, "the table has rows, and the ledger is not there"


async def _check_ledger(folder: Path, has_rows: bool) -> None:
    async with open_for_reading(folder) as (layout, ledger):
        table = ParquetTable(layout)
        known = await ledger.latest_counted()
        for run in await ledger.load_unfinished():
            entries = await ledger.load_run_files(run.run_id)
            in_table = table.has_run(run.run_id)
            action = recover(run.state, RunFiles(in_table, table.staged_whole(run.run_id, entries)))
            assert action is not Recovery.REFUSE, f"run {run.run_id} is {run.state} and in the table"
            if in_table:
                known = max(known, run.run_id)
        assert not has_rows or table.latest_run() <= known, "the table has a run that the ledger does not know"
