"""What can go wrong in an export. The text says what happened and what to do."""

from __future__ import annotations

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class ExportError(Exception):
    """An export that could not be done, or a table that is not as it should be."""


class ExportInUse(ExportError):
    """Another exporter works in that folder."""


class ExportMismatch(ExportError):
    """The folder holds something else than was asked for: another format, a later version, no export."""


class LedgerError(ExportError):
    """The ledger cannot be read or written."""


class DataLost(ExportError):
    """Messages that were never exported are no longer on the node."""


class DiskFull(ExportError):
    """There is no room for the files of a run."""


class TaskFailed(ExportError):
    """Spark could not finish the tasks of a run."""


class RangeIncomplete(ExportError):
    """A range was read with too few, too many or other indexes than asked for."""


class ExtraMissing(ExportError):
    """A library of an optional extra is not installed."""
