"""Upkeep of a table by the daemon: compacts when there are many small files, and removes what readers need no more."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_export.exporter.compact import Compaction, Compactor, plan_merges
from spark_export.exporter.rewrite import Rewriter
from spark_export.exporter.table import Table

COMPACT_FILES = 16
"""With how many small files of one stream and date the daemon compacts.

Each compaction reads the rows of the small files again, so a small number costs more, and a large one leaves readers
with more small files.
"""
UPKEEP_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""The largest size of the messages that one upkeep merges, in bytes, so that the next run does not wait for long."""
EXPIRE_INTERVAL_S = 600.0
"""How often old files are looked for when nothing is merged, in seconds."""


class Upkeep:
    """Keeps the table of one export in order, between the runs of a daemon.

    files_min: with how many small files of one stream and date a compaction is worth it; 0 for never. clock_s: returns
    a monotonic time in seconds."""

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
        """Ends a compaction that an error interrupted. Before that, no run can begin."""
        await self._rewriter.recover()

    async def run(self) -> Compaction | None:
        """Compacts or expires, if it is time. Returns what was done, or None if nothing was due. Raises ExportError."""
        due = self._expired_at_s is None or self._clock_s() - self._expired_at_s >= EXPIRE_INTERVAL_S
        # The ledger alone says whether there is something to do; the table is listed only then.
        merges = self._files_min > 0 and plan_merges(await self._rewriter.recorded_files(), self._files_min)
        if not merges and not due:
            return None
        files_min = self._files_min if merges else None
        done = await self._compactor.run(files_min, bytes_max=UPKEEP_BYTES_MAX)
        self._expired_at_s = self._clock_s()
        return done
