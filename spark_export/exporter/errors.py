"""The errors of exports. The text of an error says what happened and what to do."""

from __future__ import annotations

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class ExportError(Exception):
    """The base of all errors of exports."""


class ExportInUse(ExportError):
    """Another exporter holds the lock of the folder."""


class ExportMismatch(ExportError):
    """The folder holds an export of another format or of a later version, or no export."""


class LedgerError(ExportError):
    """The ledger cannot be read or written."""


class DataLost(ExportError):
    """Messages that were never exported are no longer on the node."""


class DiskFull(ExportError):
    """The disk has no room for the files of a run."""


class TaskFailed(ExportError):
    """Spark could not finish the tasks of a run."""


class RangeIncomplete(ExportError):
    """The messages that were read do not have exactly the indexes of the range."""


class ExtraMissing(ExportError):
    """A library of an optional extra is not installed."""
