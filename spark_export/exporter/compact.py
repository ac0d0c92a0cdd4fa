"""Compaction: merges the small files of a plain Parquet table into large ones. The rows do not change.

A compaction builds a new generation, a folder with another version of the whole table. Large files are hard-linked into
the new folder, and small files of one stream and date are merged. Then the table's symbolic link is changed to the new
folder. This change is atomic: a reader that opens the table sees the old or the new generation. The old generation is
kept for `KEEP_S` for readers that have already opened it. A later run or compaction removes the old generation.
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
from spark_export.exporter.hive_names import hive_folder
from spark_export.exporter.layout import Layout, point_to, remove_tree, sync_tree
from spark_export.exporter.ledger import Ledger, RunFile
from spark_export.exporter.parquet_table import ParquetTable, link_or_copy, run_folder
from spark_export.exporter.run_machine import COUNTED
from spark_export.exporter.write_files import FILE_BYTES_MAX, TableWriter
from storage.durable_files import sync

logger = structlog.get_logger(__name__)

SMALL_BYTES = FILE_BYTES_MAX // 2
"""Compaction merges files smaller than this size, in bytes. It is half of the size of a full file."""
KEEP_S = 3600.0
"""How many seconds the old version of a table is kept for its readers after a compaction."""


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction.

    generation: the number of the table's new version, or None if there was nothing to merge. files_before, files_after:
    the number of files in the table. merged: the number of small files that were merged. rows: the number of rows in
    the table."""

    generation: int | None
    files_before: int
    files_after: int
    merged: int
    rows: int


class Compactor:
    """Merges the small files of the table in one export folder. The caller holds the folder's lock."""

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
        """Recovers from a crash, then merges the small files of each stream and date that has two or more.

        Raises ExportError, also if a crash interrupted a run before the run was published. No error changes the rows of
        the table."""
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
        """Ends a compaction that a crash interrupted.

        If all files of the compaction were written, publishes them; otherwise removes them.
        """
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
        """Removes generations (versions of the table) that were replaced at least `keep_s` seconds ago.

        Returns their number.
        """
        current = await self._ledger.current_generation()
        before_s = self._now_us() / 1e6 - self._keep_s
        earlier = [path for path in self._layout.generations.iterdir() if int(path.name) < current]
        old = [path for path in earlier if path.stat().st_mtime <= before_s]
        for path in old:
            await asyncio.to_thread(remove_tree, path)
        return len(old)

    async def _turn(self, generation: int) -> None:
        # Nothing changes the old folder after this, so its modification time tells `sweep` when it was replaced.
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
        """Merges the files of `group` into few large files, in the folder of the latest run among the files.

        All files of the group have rows of one stream and date. Returns the new files.
        """
        first, run_id = group[0].entry, max(file.run_id for file in group)
        place = folder / run_folder(run_id) / hive_folder(first.stream, first.date)
        place.mkdir(parents=True, exist_ok=True)
        writer = TableWriter(place, f"merged-{uuid.uuid4().hex}")
        try:
            for file in sorted(group, key=lambda each: (each.run_id, each.entry.path)):
                with pq.ParquetFile(self._table.locate(file)) as opened:
                    for batch in opened.iter_batches(batch_size=64 * 1024):
                        writer.write(first.stream, first.era, batch)
            entries = writer.close()
        finally:
            writer.abort()
        if sum(entry.rows for entry in entries) != sum(file.entry.rows for file in group):
            raise ExportError(f"merging {place} gave another number of rows; the table is as before: run verify")
        # All rows have one date, so all new files belong in this folder.
        below = place.relative_to(folder / run_folder(run_id))
        return [RunFile(run_id, replace(entry, path=str(below / entry.path))) for entry in entries]


def plan_merges(files: Sequence[RunFile]) -> list[list[RunFile]]:
    """Returns groups of small files to be merged, each of at least two files of one stream and date.

    If a stream was deleted and created again, files of the old and the new stream are in different groups."""
    groups: dict[tuple[str, int, str], list[RunFile]] = defaultdict(list)
    for file in files:
        if file.entry.file_bytes < SMALL_BYTES:
            groups[file.entry.stream, file.entry.era, file.entry.date].append(file)
    return [group for group in groups.values() if len(group) > 1]
