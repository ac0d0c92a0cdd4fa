"""Upkeep of a table: merges small files, removes old files and versions, and erases messages that must be forgotten."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from spark_export.tables.errors import TableRefused
from spark_export.tables.log import TableLog
from spark_export.tables.model import key_digest

if TYPE_CHECKING:
    from spark_export.exporter.history import ExportHistory

COMPACT_FILES = 16
"""The number of small files of one partition of the table at which the daemon merges them. A smaller number causes more
compactions, which read the rows again; with a larger one, readers open more files."""
EXPIRE_INTERVAL_S = 600.0
"""The time in seconds after which the daemon removes old files again."""
KEEP_S = {"parquet": 3_600.0, "delta": 5 * 86_400.0, "iceberg": 5 * 86_400.0}
"""How long replaced files are kept for readers, in seconds."""


@dataclass(frozen=True)
class Kept:
    """The result of an upkeep. files_before, files_after: the number of files of the table. merged, expired: the number
    of files that were merged, and of old files and versions that were removed."""

    files_before: int
    files_after: int
    merged: int
    expired: int


class TableUpkeep:
    """The upkeep of one table. If both arguments are None and another program made the table, nothing is done.

    files_min: see COMPACT_FILES, the default; 0: nothing is merged. keep_s: the least time for which replaced files are
        retained; None: KEEP_S.
    """

    def __init__(self, log: TableLog, *, files_min: int | None = None, keep_s: float | None = None) -> None:
        self._log = log
        self._is_asked = files_min is not None or keep_s is not None
        self._files_min = COMPACT_FILES if files_min is None else files_min
        self._keep_s = KEEP_S[log.format] if keep_s is None else keep_s
        self._expire_s = 0.0

    def run(self) -> Kept:
        """Merges small files if there are many, and removes old files if it is time. Raises ExportError."""
        before = len(self._log.list_files())
        if not self._is_asked and not self._log.is_own():
            # The owner of the table may have an upkeep and readers of earlier versions, unknown here.
            return Kept(before, before, 0, 0)
        merged = self._log.compact(files_min=self._files_min) if self._files_min else 0
        after = len(self._log.list_files()) if merged else before
        expired = 0
        if merged or time.monotonic() >= self._expire_s:
            expired = self._log.expire(self._keep_s)
            self._expire_s = time.monotonic() + EXPIRE_INTERVAL_S
        return Kept(before, after, merged, expired)


def forget(
    log: TableLog, history: ExportHistory, stream: str, key: bytes | None, *, keep_s: float | None = None
) -> dict[str, Any]:
    """Erases the messages of a stream, or those with one key, that the node has stored until now, and keeps them out of
    later runs. Returns the result, for a report. Raises ExportError.

    keep_s: how long older versions of the table, which still have the rows, are kept for their readers; None: as long
        as the owner of the table says, else not at all.
    """
    # A table of the user's own can lack the columns that say which rows to erase.
    names = log.column_names()
    needed = ("timestamp",) if key is None else ("timestamp", "key")
    if lacking := [each for each in needed if names and each not in names]:
        raise TableRefused(f"the table {log.address} has no column {lacking[0]}; erase its rows with another program")
    # The clock of the node can be, or can have been, ahead of the clock here. So the times of the rows count, too, and
    # the time of the last exported message, whose row may have been removed. Delta's log has milliseconds.
    positions = [each for of, each in log.load().positions.items() if of.stream == stream]
    times_us = [time.time_ns() // 1000, *(each.last_us + 999 for each in positions)]
    for batch in log.read(["stream", "timestamp"]):
        if "timestamp" in batch.schema.names:
            found = pc.max(batch.filter(pc.equal(batch.column("stream"), stream)).column("timestamp"))
            times_us += [found.cast("int64").as_py()] if found.is_valid else []
    until_us = max(times_us)
    rows = log.forget(stream, key, until_us)
    rule = log.owners_rule()
    expired = log.expire(keep_s or 0.0, exactly=keep_s is not None)
    is_kept = rule.keep_s == math.inf or (keep_s is None and (rule.keep_s > 0 or rule.versions_min > 1))
    still_in = log.versions_with(stream, key)
    done: dict[str, Any] = {"stream": stream, "key_sha256": None if key is None else key_digest(key)}
    done |= {"until_us": until_us, "rows": rows, "expired": expired}
    # The properties of the owner that retain older versions, and the tags and branches that still have the rows.
    done |= {"kept_by": rule.said if is_kept else "", "still_in": still_in}
    history.add_record("forget", done)
    return done
