"""The errors of exports. The message of each error says what happened and what the user can do."""

from __future__ import annotations

import errno
from typing import Any

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
REPORTED_MAX = 3
"""The largest number of streams that the message of StreamsLeftOut describes."""


class ExportError(Exception):
    """The base of all errors of exports."""


class ExportInUse(ExportError):
    """Another exporter holds the lock of the export folder."""


class ExportMismatch(ExportError):
    """The export folder cannot be used by this exporter.

    The folder has no export, or an export of another format or a later version, or its table and its record of
    runs disagree.
    """


class TableChanged(ExportMismatch):
    """Another program changed the table, for example while a compaction was merging files."""


class TableDamaged(ExportError):
    """A file of the table is missing or damaged."""


class LedgerError(ExportError):
    """The ledger, a database with a record of all runs, cannot be read or written."""


class DataLost(ExportError):
    """The node perhaps lacks messages that were never exported.

    Retention or a deletion removed the messages, or the node was restored to an earlier state."""


class ExportDiskFull(ExportError):
    """The disk has no space for the files of a run."""


class TaskFailed(ExportError):
    """Spark could not finish the tasks of a run."""


class RangeIncomplete(ExportError):
    """A task did not read exactly the messages of its index range, each once and in order."""


class FolderNotSeen(ExportError):
    """A task cannot find the folder for its files, for example on an executor that does not share the
    exporter's disk.
    """


class TakenOver(ExportError):
    """Another exporter has taken over the table. The present exporter must not publish anything more."""


class StreamsLeftOut(ExportError):
    """Some streams could not be exported. All other streams were exported, and their rows are in the table.

    outcome: the `spark_export.exporter.runs.run.ExportOutcome` of the export, which lists all these streams.
    """

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        told = [each.reason for each in outcome.left_out[:REPORTED_MAX]]
        more = len(outcome.left_out) - len(told)
        if more:
            told.append(f"and {more} more streams, which --json lists")
        super().__init__("; ".join(told))


class ExtraMissing(ExportError):
    """A Python library that the chosen table format needs is not installed."""


class ExportNodeFailed(ExportError):
    """The node could not be reached, or did not answer, during `run_export`, the call for schedulers such
    as Airflow.
    """


class ExportStopped(ExportError):
    """A signal or the caller stopped `run_export`, the call for schedulers such as Airflow.

    A later export takes the messages that were not published.
    """
