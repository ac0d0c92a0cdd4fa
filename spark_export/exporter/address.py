"""The address of an export: of its table, and of its ledger. This module opens nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_export.store.place import Place, parse_place


@dataclass(frozen=True)
class Address:
    """The address of an export. place: of its table. options: of its store. ledger: the SQLAlchemy URL of a ledger in
    a database; None for a ledger that is kept with the table."""

    place: Place
    options: Mapping[str, str] = field(default_factory=dict)
    ledger: str | None = None

    @classmethod
    def of(cls, folder: Path | str | Place | Address) -> Address:
        """The address from any of its short forms. Raises PlaceRefused."""
        if isinstance(folder, Address):
            return folder
        return cls(folder if isinstance(folder, Place) else parse_place(folder))
