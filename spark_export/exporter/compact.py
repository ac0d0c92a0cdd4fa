"""Compaction: merges the small files of a table of plain Parquet into large ones, as a new generation of the table.
Compaction changes no row.

The new generation is built beside the one that readers see. Large files are linked into it; small files of one stream
and date are merged. Then the table's link is turned. Turning the link is atomic: a reader that opens the table sees the
old generation or the new one. The old generation stays for readers that have opened it (`KEEP_S`); a later run or
compaction removes it.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import structlog

from spark_export.exporter.errors import ExportError, ExportMismatch
from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.layout import Layout, hive_folder, point_to, remove_tree, sync_tree
from spark_export.exporter.ledger import Ledger, RunFile
from spark_export.exporter.parquet_table import ParquetTable, link_or_copy, run_folder
from spark_export.exporter.run_machine import COUNTED
from spark_export.exporter.write_files import FILE_BYTES_MAX, FILE_SCHEMA, TableWriter
from storage.durable_files import sync

logger = structlog.get_logger(__name__)

SMALL_BYTES = FILE_BYTES_MAX // 2
"""Smaller files are worth merging."""
KEEP_S = 3600.0
"""How long a generation that has been replaced is kept for readers that began in it."""


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction. generation: None if there was nothing to merge."""

    generation: int | None
    files_before: int
    files_after: int
    merged: int
    rows: int


class Compactor:
    """Compacts the table of one export folder. The caller holds the folder's lock."""

    def __init__(self, layout: Layout, ledger: Ledger, *, now_us: Callable[[], int], keep_s: float = KEEP_S) -> None:
        if ledger.identity.format != "parquet":
            raise ExportMismatch(
                f"{layout.folder} is a {ledger.identity.format} table: use that format's own means to compact it"
            )
        self._layout = layout
        self._ledger = ledger
        self._table = ParquetTable(layout)
        self._now_us = now_us
        self._keep_s = keep_s

    async def run(self) -> Compaction:
        """Merges files where merging saves enough. Raises ExportError, also when a crashed run was not recovered; the
        table is unchanged then."""
        await self.recover()
        for run in await self._ledger.load_unfinished():
            if run.state not in COUNTED:
                raise ExportError(
                    f"run {run.run_id} was left {run.state} by a crash; `stream-node export run` finishes it first"
                )
        old = await self._ledger.current_generation()
        files = await self._ledger.load_files(old)
        groups = plan_merges(files)
        if not groups:
            return Compaction(None, len(files), len(files), 0, sum(each.entry.rows for each in files))
        new = await self._ledger.begin_generation(self._now_us())
        failpoint("compact_planned")
        made = await asyncio.to_thread(self._build, new, files, groups)
        await self._ledger.record_generation(new, made)
        failpoint("compact_written")
        await self._turn(new)
        await self.sweep()
        merged = sum(len(group) for group in groups)
        return Compaction(new, len(files), len(made), merged, sum(each.entry.rows for each in made))

    async def recover(self) -> None:
        """Recovers from a crash: finishes a compaction whose files were written, and removes any other."""
        found = await self._ledger.find_open_generation()
        if found is None:
            return
        generation, state = found
        if state == "written":
            await self._turn(generation)
            return
        await asyncio.to_thread(remove_tree, self._layout.generation(generation))
        await self._ledger.drop_generation(generation)
        logger.info("compaction abandoned", generation=generation)

    async def sweep(self) -> int:
        """Removes generations that were replaced long enough ago. Returns how many."""
        current = await self._ledger.current_generation()
        before_s = self._now_us() / 1e6 - self._keep_s
        earlier = [path for path in self._layout.generations.iterdir() if int(path.name) < current]
        old = [path for path in earlier if path.stat().st_mtime <= before_s]
        for path in old:
            await asyncio.to_thread(remove_tree, path)
        return len(old)

    async def _turn(self, generation: int) -> None:
        # No file is added to a generation that was replaced, so the time of its folder says when that happened.
        os.utime(self._layout.table.resolve())
        await asyncio.to_thread(point_to, self._layout.table, self._layout.generation(generation))
        failpoint("between_turn_and_ledger")
        await self._ledger.publish_generation(generation)
        logger.info("table turned", generation=generation)

    def _build(self, generation: int, files: Sequence[RunFile], groups: Sequence[Sequence[RunFile]]) -> list[RunFile]:
        folder = self._layout.generation(generation)
        folder.mkdir()
        merged = {id(file) for group in groups for file in group}
        made = []
        for file in files:
            if id(file) not in merged:
                link_or_copy(self._table.locate(file), folder / run_folder(file.run_id) / file.entry.path)
                made.append(file)
        for group in groups:
            made += self._merge(folder, group)
        sync_tree(folder)
        sync(folder.parent)
        return made

    def _merge(self, folder: Path, group: Sequence[RunFile]) -> list[RunFile]:
        """Merges files of one stream, era and date into few large ones, in the folder of the latest run among them."""
        first, run_id = group[0].entry, max(file.run_id for file in group)
        place = folder / run_folder(run_id) / hive_folder(first.stream, first.date)
        place.mkdir(parents=True, exist_ok=True)
        writer = TableWriter(place, f"merged-{uuid.uuid4().hex}")
        try:
            for file in sorted(group, key=lambda each: (each.run_id, each.entry.path)):
                with pq.ParquetFile(self._table.locate(file)) as opened:
                    for batch in opened.iter_batches(batch_size=64 * 1024):
                        writer.write(first.stream, first.era, batch.cast(FILE_SCHEMA))
            entries = writer.close()
        finally:
            writer.abort()
        if sum(entry.rows for entry in entries) != sum(file.entry.rows for file in group):
            raise ExportError(f"merging {place} gave another number of rows; the table is as before: run verify")
        # All rows have the date of the group's folder, so the writer puts its files there.
        below = place.relative_to(folder / run_folder(run_id))
        return [RunFile(run_id, replace(entry, path=str(below / entry.path))) for entry in entries]


def plan_merges(files: Sequence[RunFile]) -> list[list[RunFile]]:
    """Groups of small files to be merged. A group has at least two files, all of one stream, era and date."""
    groups: dict[tuple[str, int, str], list[RunFile]] = defaultdict(list)
    for file in files:
        if file.entry.file_bytes < SMALL_BYTES:
            groups[file.entry.stream, file.entry.era, file.entry.date].append(file)
    return [group for group in groups.values() if len(group) > 1]
