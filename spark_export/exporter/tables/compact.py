"""Compaction: merges the small files of a table into large ones. The rows do not change.

Files of one stream, era and date are merged. The era is the number of times that the stream was created again. Each new
file has its rows in the order of partition and index. Before a file is merged, its SHA-256 is compared with the ledger,
so that a damaged file never gets a new checksum. The new files replace the old files atomically (`rewrite.py`). The old
files are kept for a time, for readers that have already opened them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.exporter.errors import ExportError, TableDamaged
from spark_export.exporter.model import RunFile
from spark_export.exporter.tables.rewrite import REPAIR, Rewriter, read_checked
from spark_export.exporter.tables.table import Table
from spark_export.exporter.tables.write_files import FILE_BYTES_MAX, TableWriter
from spark_export.exporter.verify import batch_intervals

SMALL_BYTES = FILE_BYTES_MAX // 2
"""Compaction merges files smaller than this size, in bytes. It is half of the size of a full file."""
MERGE_BYTES_MAX = 512 * 1024 * 1024
"""The largest size of the rows that are merged in memory, in bytes. Compressed, they make a file of FILE_BYTES_MAX."""
ROW_BYTES = 64
"""The estimated size in memory of a row's index, timestamp, key and headers, in bytes. The data is counted separately.
"""


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction.

    generation: the number of the table's new version, or None if there was nothing to merge.
    merged: the number of small files that were merged.
    expired: the number of replaced files, old versions of the table, or old snapshots that were removed.
    """

    generation: int | None
    files_before: int
    files_after: int
    merged: int
    rows: int
    expired: int = 0


class Compactor:
    """Merges the small files of the table in one export folder. The caller holds the folder's lock."""

    def __init__(self, rewriter: Rewriter, table: Table) -> None:
        self._rewriter = rewriter
        self._table = table

    async def run(self, files_min: int | None = 2, *, bytes_max: int | None = None) -> Compaction:
        """Merges the small files of each stream and date, and removes files that were replaced long enough ago.

        Before that, ends a compaction that a crash interrupted. Raises TableDamaged if a file of the table is missing
        or damaged, and ExportError if a run was interrupted before its publication. After an error, the table has the
        same rows.

        files_min: the smallest number of small files of one stream and date that are merged; None merges nothing.
        """
        await self._rewriter.recover()
        files = await self._rewriter.load_files()
        parts = [] if files_min is None else limit_merges(plan_merges(files, files_min), bytes_max)
        if not parts:
            expired = await self._rewriter.expire()
            return Compaction(None, len(files), len(files), 0, sum(each.entry.rows for each in files), expired)
        merged = {id(file) for part in parts for file in part}
        kept = [file for file in files if id(file) not in merged]
        self._check_sizes(kept)
        made = await self._rewriter.replace(
            kept, lambda folder: [file for part in parts for file in self._merge(folder, part)]
        )
        expired = await self._rewriter.expire()
        rows = sum(each.entry.rows for each in made)
        number = await self._rewriter.current_generation()
        return Compaction(number, len(files), len(made), len(merged), rows, expired)

    def _check_sizes(self, kept: Sequence[RunFile]) -> None:
        """Raises TableDamaged if a file that is not merged has another size than the ledger says."""
        for file in kept:
            path = self._table.locate(file)
            size = path.stat().st_size if path.is_file() else None
            if size != file.entry.file_bytes:
                raise TableDamaged(f"{path} is not what run {file.run_id} wrote: {REPAIR}")

    def _merge(self, folder: Path, part: Sequence[RunFile]) -> list[RunFile]:
        """Merges files of one stream, era and date into few large files in `folder`. Returns the new files."""
        first, run_id = part[0].entry, max(file.run_id for file in part)
        writer = TableWriter(folder, uuid.uuid4().hex, with_stream=self._table.with_stream)
        try:
            for batch in self._sorted_batches(part):
                writer.write(first.stream, first.era, batch)
            entries = writer.close()
        finally:
            writer.abort()
        if sum(entry.rows for entry in entries) != sum(file.entry.rows for file in part):
            raise ExportError(
                f"merging {first.stream} of {first.date} gave another number of rows; the table is as before: run "
                "verify"
            )
        return [RunFile(run_id, entry) for entry in entries]

    def _sorted_batches(self, files: Sequence[RunFile]) -> Iterator[pa.RecordBatch]:
        runs_of_rows: list[tuple[int, int, pa.RecordBatch]] = []
        for file in files:
            path = self._table.locate(file)
            try:
                table = pq.ParquetFile(pa.BufferReader(read_checked(path, file))).read()
            except pa.ArrowException as error:
                raise TableDamaged(f"{path} cannot be read ({error}): {REPAIR}") from error
            for batch in table.to_batches():
                start = 0
                for partition, (first, end) in batch_intervals(batch):
                    runs_of_rows.append((partition, first, batch.slice(start, end - first)))
                    start += end - first
        for _, _, rows in sorted(runs_of_rows, key=lambda each: each[:2]):
            yield rows


def plan_merges(files: Sequence[RunFile], files_min: int = 2) -> list[list[RunFile]]:
    """Returns the parts to merge: lists of at least two small files of one stream, era and date.

    The files of a part have at most MERGE_BYTES_MAX bytes in memory.
    """
    groups: dict[tuple[str, int, str], list[RunFile]] = defaultdict(list)
    for file in files:
        if file.entry.file_bytes < SMALL_BYTES and file.entry.data_bytes < MERGE_BYTES_MAX:
            groups[file.entry.stream, file.entry.era, file.entry.date].append(file)
    planned: list[list[RunFile]] = []
    for group in groups.values():
        parts = [part for part in _parts(group) if len(part) > 1]
        if sum(map(len, parts)) >= files_min:
            planned += parts
    return planned


def limit_merges(parts: Sequence[list[RunFile]], bytes_max: int | None) -> list[list[RunFile]]:
    """Shortens a list of parts so that their files have at most `bytes_max` bytes of message data together.

    The first two files are always taken, even if they have more bytes.
    """
    if bytes_max is None:
        return list(parts)
    taken: list[list[RunFile]] = []
    filled = 0
    for part in parts:
        chosen: list[RunFile] = []
        for file in part:
            if filled + file.entry.data_bytes > bytes_max and (taken or len(chosen) > 1):
                break
            chosen.append(file)
            filled += file.entry.data_bytes
        if len(chosen) > 1:
            taken.append(chosen)
    return taken


def _parts(group: Sequence[RunFile]) -> Iterator[list[RunFile]]:
    part: list[RunFile] = []
    filled = 0
    for file in sorted(group, key=lambda each: (each.run_id, each.entry.path)):
        size = file.entry.data_bytes + ROW_BYTES * file.entry.rows
        if part and filled + size > MERGE_BYTES_MAX:
            yield part
            part, filled = [], 0
        part.append(file)
        filled += size
    if part:
        yield part
