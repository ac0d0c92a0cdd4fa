"""Upkeep of a table by the daemon: merges small files when there are many, and removes old files and versions."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_export.exporter.tables.compact import Compaction, Compactor, plan_merges
from spark_export.exporter.tables.rewrite import Rewriter
from spark_export.exporter.tables.table import Table

COMPACT_FILES = 16
"""The number of small files of one stream and date at which the daemon compacts these files.

A smaller number causes more compactions, which read the rows again; with a larger one, readers open more files.
"""
UPKEEP_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""The largest size of the messages that one compaction merges, in bytes. The next run of the exporter waits for it."""
EXPIRE_INTERVAL_S = 600.0
"""The time in seconds after which the daemon removes old files again. A compaction also removes them."""


class ExportUpkeep:
    """Compacts the table of one export and removes old files, between the runs of a daemon. files_min: the number of
    small files of one stream and date at which they are compacted; 0 for never."""

    def __init__(
        self,
        rewriter: Rewriter,
        table: Table,
        *,
        files_min: int = COMPACT_FILES,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rewriter = rewriter
        self._compactor = Compactor(rewriter, table)
        self._files_min = files_min
        self._clock_s = clock_s
        self._expired_at_s: float | None = None

    async def recover(self) -> None:
        """Ends an interrupted compaction, because no run can begin while a compaction is unfinished."""
        await self._rewriter.recover()

    async def run(self) -> Compaction | None:
        """Compacts small files and removes old files, if either is due. Returns None if not. Raises ExportError."""
        due = self._expired_at_s is None or self._clock_s() - self._expired_at_s >= EXPIRE_INTERVAL_S
        # The ledger alone says whether there is something to do; the table is listed only then.
        merges = self._files_min > 0 and plan_merges(await self._rewriter.recorded_files(), self._files_min)
        if not merges and not due:
            return None
        files_min = self._files_min if merges else None
        done = await self._compactor.run(files_min, bytes_max=UPKEEP_BYTES_MAX)
        self._expired_at_s = self._clock_s()
        return done
