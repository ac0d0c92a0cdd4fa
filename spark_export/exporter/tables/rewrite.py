"""Rewrites: each replaces files of a table by other files atomically. Compaction and repair use rewrites.

    planned ──▶ written ──▶ published
       └───────────┴──▶ dropped

A rewrite makes a new generation, which is a version of the whole table. The ledger, which is the record of all runs,
has the state of each rewrite. Replaced files are kept for a time, for readers that have opened these files.

- planned: new files are being written in the staging folder.
- written: all files of the generation are complete, synced and recorded in the ledger.
- published: readers see the generation.
- dropped: the generation is never published, and the new files are removed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from spark_export.exporter.cleaning import remove_own
from spark_export.exporter.errors import ExportError, ExportMismatch, TableChanged, TableDamaged, TakenOver
from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import Loss, RunFile
from spark_export.exporter.runs.run_machine import COUNTED
from spark_export.exporter.runs.waiting import to_its_end
from spark_export.exporter.tables.layout import ATTEMPTS, Layout, remove_tree
from spark_export.exporter.tables.table import Table
from spark_export.exporter.tables.table_state import check_runs
from spark_export.store.paths import FilePath

logger = structlog.get_logger(__name__)

KEEP_S = {"parquet": 3600.0, "delta": 5 * 86_400.0, "iceberg": 5 * 86_400.0}
"""How long replaced files and old snapshots are kept for readers, in seconds, by the table's format.

Users of Delta and Iceberg also query earlier versions, so these formats keep files longer.
"""
CHANGED = (
    "another program has changed the table (by a DELETE, UPDATE, MERGE, OPTIMIZE or rollback), and this command cannot "
    "tell its changes from damage; the table stays as it is, and `export run` goes on: use that program's own means to "
    "compact or restore it"
)
"""Why a table is neither compacted nor repaired that another program has changed."""
REPAIR = "`stream-node export repair` takes its rows from the node again"


class Rewriter:
    """Replaces files of the table in one export folder, and later removes the old files. The caller holds the lock.
    keep_s: how long replaced files stay for readers; None for the default of the format (KEEP_S)."""

    def __init__(
        self, layout: Layout, ledger: Ledger, table: Table, *, now_us: Callable[[], int], keep_s: float | None = None
    ) -> None:
        self._layout = layout
        self._ledger = ledger
        self._table = table
        self._now_us = now_us
        self._keep_s = KEEP_S[ledger.identity.format] if keep_s is None else keep_s

    async def recover(self) -> None:
        """Ends an interrupted rewrite: publishes it if all new files were written, else removes them.

        Raises TakenOver, and changes nothing, if another exporter has taken over the table.
        """
        await self._ledger.check_owner()
        found = await self._ledger.find_open_generation()
        if found is None:
            return
        generation, state = found
        await to_its_end(self._publish(generation) if state == "written" else self._drop(generation))

    async def load_files(self) -> list[RunFile]:
        """Returns all files of the table for a compaction. Raises TableDamaged, and the errors of `load_listed`."""
        listed, unlisted = await self.load_listed()
        if unlisted:
            raise TableDamaged(f"{self._table.locate(unlisted[0])} is missing from the table: {REPAIR}")
        return listed

    async def load_listed(self) -> tuple[list[RunFile], list[RunFile]]:
        """Returns the ledger's files that the table lists, and those that a plain Parquet table has lost.

        Raises ExportError if a run was interrupted before its publication, and ExportMismatch if the ledger and the
        table disagree, as after a commit of another program.
        """
        for run in await self._ledger.load_unfinished():
            if run.state not in COUNTED:
                raise ExportError(
                    f"run {run.run_id} was left {run.state} by a crash; `stream-node export run` finishes it first"
                )
        await check_runs(self._table, self._ledger)
        files = await self._ledger.load_files(await self._ledger.current_generation())
        known = [self._table.locate(file).resolve() for file in files]
        listed = await asyncio.to_thread(lambda: {path.resolve() for path in self._table.list_files()})
        if strange := sorted(listed - set(known)):
            raise ExportMismatch(f"{strange[0]} is in the table, and no run wrote it: {CHANGED}")
        # What somebody deleted must not come back. The rows of a file that stays can be marked as deleted, and a file
        # leaves the log of a table only by a commit.
        if await asyncio.to_thread(self._table.hides_rows):
            raise ExportMismatch(f"rows of the table's files may be marked as deleted: {CHANGED}")
        if self._ledger.identity.format != "parquet" and (gone := sorted(set(known) - listed)):
            raise ExportMismatch(f"{gone[0]} was written by a run, and is not in the table any more: {CHANGED}")
        pairs = list(zip(files, known, strict=True))
        return (
            [file for file, path in pairs if path in listed],
            [file for file, path in pairs if path not in listed],
        )

    async def replace(
        self, kept: Sequence[RunFile], write: Callable[[Path], Sequence[RunFile]], lost: Sequence[Loss] = ()
    ) -> list[RunFile]:
        """Makes and publishes a new version of the table: the files `kept`, and the files that `write` makes. Returns
        both.

        After an error of `write`, the table is unchanged. If the caller is cancelled, the new version is dropped or
        published before the CancelledError is raised. Raises TakenOver, and publishes nothing, after another exporter's
        take-over.

        write: gets an existing folder, writes and syncs files in it, and returns them with paths relative to the
            folder.
        """
        generation = await self._ledger.begin_generation(self._now_us())
        failpoint("compact_planned")
        try:
            made = await to_its_end(asyncio.to_thread(self._make, generation, kept, write))
            await to_its_end(self._ledger.record_generation(generation, made, lost, self._now_us()))
        except TakenOver:
            # The rewrite belongs to the other exporter, which drops or publishes it.
            raise
        except BaseException:
            await self._recover_after_error(generation)
            raise
        failpoint("compact_written")
        await to_its_end(self._publish(generation))
        return made

    async def current_generation(self) -> int:
        return await self._ledger.current_generation()

    async def recorded_files(self) -> list[RunFile]:
        return await self._ledger.load_files(await self._ledger.current_generation())

    async def expire(self) -> int:
        """Removes what was replaced at least `keep_s` seconds ago. Returns the number of files and versions."""
        await self._ledger.check_owner()
        current = await self._ledger.load_files(await self._ledger.current_generation())
        now_s = self._now_us() / 1e6
        removed = await to_its_end(asyncio.to_thread(self._table.expire_log, now_s, self._keep_s))
        names = await asyncio.to_thread(self._table.find_expired, current, now_s, self._keep_s)
        return removed + await remove_own(self._table, self._ledger, names)

    async def _recover_after_error(self, generation: int) -> None:
        try:
            await self.recover()
        except ExportError as error:
            # The caller raises the first error. The next command recovers.
            logger.warning("rewrite left behind", generation=generation, reason=str(error))

    def _make(
        self, generation: int, kept: Sequence[RunFile], write: Callable[[Path], Sequence[RunFile]]
    ) -> list[RunFile]:
        attempts = self._layout.rewrite_staging(generation) / ATTEMPTS
        # An earlier rewrite of this number may have left files here.
        remove_tree(attempts.parent)
        attempts.mkdir(parents=True)
        return self._table.stage_rewrite(generation, kept, write(attempts))

    async def _drop(self, generation: int) -> None:
        await asyncio.to_thread(self._table.drop_rewrite, generation)
        await self._ledger.drop_generation(generation)
        logger.info("rewrite abandoned", generation=generation)

    async def _publish(self, generation: int) -> None:
        # If a save of the ledger failed before, the call repeats it: the table must not be ahead of the ledger.
        await self._ledger.check_owner()
        before = await self._ledger.load_files(await self._ledger.current_generation())
        after = await self._ledger.load_files(generation)
        expires_s = self._now_us() / 1e6 + self._keep_s
        try:
            await asyncio.to_thread(self._table.rewrite, generation, before, after, expires_s)
        except TableChanged:
            await self._drop(generation)
            raise
        failpoint("between_turn_and_ledger")
        await self._ledger.publish_generation(generation)
        await asyncio.to_thread(remove_tree, self._layout.rewrite_staging(generation))
        logger.info("table rewritten", generation=generation, files_before=len(before), files=len(after))


def read_checked(path: FilePath, file: RunFile) -> bytes:
    """Returns the content of a file. Raises TableDamaged if it is missing or has another size or checksum."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise TableDamaged(f"{path} is missing: {REPAIR}") from error
    except OSError as error:
        raise TableDamaged(f"{path} cannot be read ({error.strerror or error}): {REPAIR}") from error
    if len(content) != file.entry.file_bytes or hashlib.sha256(content).hexdigest() != file.entry.sha256:
        raise TableDamaged(f"{path} is not what run {file.run_id} wrote: {REPAIR}")
    return content
