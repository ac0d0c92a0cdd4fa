"""The errors of exported tables. The message of each error says what happened and what the user can do.

This module imports no other module of the project, because Spark sends it to executors.
"""

from __future__ import annotations


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
    """The plan of a run is out of date, such as after a faster exporter. Nothing of the run is in the table."""


class RangeIncomplete(ExportError):
    """A task did not read exactly the messages of its index range, each once and in order."""


class ExtraMissing(ExportError):
    """A Python library that the chosen table format needs is not installed."""
