"""The errors of exports and their tables. The message of each error says what happened and what the user can do.

This module imports no other module of the project, because Spark sends it to executors.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM_TEXTS = ("no space left on device", "disk quota exceeded", "database or disk is full")
"""The words of the table libraries' errors for a full disk, in small letters. These errors have no error number."""
REPORTED_MAX = 3
"""The largest number of streams that the message of StreamsLeftOut describes."""


class ExportError(Exception):
    """The base of all errors of exports and their tables."""


class TableRefused(ExportError):
    """The table cannot be used by this exporter: its format, its columns or its settings do not fit."""


class EarlierVersion(TableRefused):
    """An earlier version of the exporter has written the table, and its log does not say what was exported."""

    def __init__(self, address: object) -> None:
        super().__init__(
            f"{address} is an export of an earlier version, and everything would be exported once more: "
            "`stream-node export migrate` takes it over, once"
        )


class TableDamaged(ExportError):
    """A file of the table is missing or damaged."""


class PositionsMoved(ExportError):
    """The plan of a run is out of date, for example because another exporter was faster. Nothing of the run is in the
    table."""


class RangeIncomplete(ExportError):
    """A task did not read exactly the messages of its index range, each once and in order."""


class ExtraMissing(ExportError):
    """A Python library that the chosen table format needs is not installed."""


class ExportDiskFull(ExportError):
    """The disk has no space for the files of a run, or for its commit."""


class TaskFailed(ExportError):
    """Spark could not finish the tasks of a run."""


class SparkLost(ExportError):
    """The Spark of `spark-submit`, of which this process is a part, has ended. A daemon ends, too."""


class StreamsLeftOut(ExportError):
    """Some streams could not be exported. All other streams were exported, and their rows are in the table.

    outcome: the `spark_export.exporter.run.ExportOutcome` of the export, which lists all these streams.
    """

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        told = [each.reason for each in outcome.left_out[:REPORTED_MAX]]
        more = len(outcome.left_out) - len(told)
        if more:
            told.append(f"and {more} more streams, which --json lists")
        super().__init__("; ".join(told))


class ExportNodeFailed(ExportError):
    """The node could not be reached, or did not answer, during `run_export`, the call for schedulers such
    as Airflow.
    """


class ExportStopped(ExportError):
    """A signal or the caller stopped an export before its end.

    A later export takes the messages that were not published.
    """


@contextmanager
def full_disk_told(place: object) -> Iterator[None]:
    """Turns the error of a full disk into ExportDiskFull. place: the address of the export, which the error names if
    the path is unknown.

    The full disk can also be that of Spark's temporary files.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ExportDiskFull(
            f"no room in {error.filename or place}: the disk is full ({error.strerror}); nothing of what is new is in "
            "the table, free space and run again"
        ) from error


def is_disk_full(error: BaseException) -> bool:
    """Returns whether an error, or an error that led to it, is that of a full disk."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in NO_ROOM:
            return True
        if any(each in str(found).lower() for each in NO_ROOM_TEXTS):
            return True
        found = found.__cause__ or found.__context__
    return False
