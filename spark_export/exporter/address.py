"""The addresses of an export's table and ledger. This module opens neither the table nor the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_export.store.place import StoreLocation, parse_place


@dataclass(frozen=True)
class TableAddress:
    """The address of an export: where its table is, and where its ledger is. The ledger is the record of all runs.

    place: the folder of the table, or its address on a store.
    options: the options of the store.
    ledger: the SQLAlchemy URL of the database with the ledger, or None for a ledger that is stored with the table.
    """

    place: StoreLocation
    options: Mapping[str, str] = field(default_factory=dict)
    ledger: str | None = None

    @classmethod
    def of(cls, folder: Path | str | StoreLocation | TableAddress) -> TableAddress:
        if isinstance(folder, TableAddress):
            return folder
        return cls(folder if isinstance(folder, StoreLocation) else parse_place(folder))
