"""The mark of a table: a small object beside the table, which says which ledger the table has.

The ledger is the record of all runs of an export. A second ledger of the same table would export all messages again, or
remove files that it does not know. The mark has the table's id, its format, and a digest of the address of its ledger.
A table on a store always has a mark. A table in a folder has one if its ledger is in a database (`--ledger`); otherwise
the ledger itself is in the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from ockam.files.parsing import parse_json
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.tables.layout import TABLE, Layout
from spark_export.exporter.tables.manifest import FOLDER
from spark_export.store.errors import ObjectExists, ObjectMissing
from spark_export.store.local_store import LocalStore
from spark_export.store.place import parse_place
from spark_export.store.store import Store

TABLE_OBJECT, FOLDER_MARK = "_export/table.json", "table.json"
"""The names of the mark: on a store, and in a folder. The mark is written once."""
VERSION = 1
STORED = "stored with the table"
"""The address of a ledger that is an object beside the table."""


def name_ledger(url: URL) -> str:
    """Returns a digest of the address of a ledger in a database, without its user and password."""
    parts = url.get_backend_name(), url.host, url.port, url.database, url.query.get("schema")
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class TableMark:
    """The mark of the table in one folder, or at one address of a store."""

    store: Store
    name: str

    @classmethod
    def of(cls, layout: Layout) -> TableMark:
        if layout.store is not None:
            return cls(layout.store, TABLE_OBJECT)
        return cls(LocalStore(parse_place(layout.folder), {}), FOLDER_MARK)

    def settle(self, table_id: str, table_format: str, ledger: str, *, now_us: int) -> str:
        """Prepares a new ledger. Writes the mark if there is none. Returns the id of the table.

        Raises StoreError, and ExportMismatch if the table has another ledger or another format. The call can be
        repeated after a crash before the ledger was made.
        """
        made = {"version": VERSION, "table_id": table_id, "format": table_format, "ledger": ledger, "made_us": now_us}
        try:
            self.store.create(self.name, json.dumps(made).encode())
        except ObjectExists:
            found = self.read()
            assert found is not None
            if found["format"] != table_format:
                raise ExportMismatch(
                    f"{self.store.place} holds a table in the format {found['format']}, not {table_format}; say "
                    f"--format {found['format']}, or export to another address"
                ) from None
            # Earlier versions wrote marks without the ledger.
            if found.get("ledger", ledger) != ledger:
                raise ExportMismatch(
                    f"{self.store.place} is the table of another ledger, which another exporter has just made: "
                    f"{self._advice(found)}, or export to another address"
                ) from None
            return str(found["table_id"])
        return table_id

    def read(self) -> dict[str, Any] | None:
        """Returns the contents of the mark, or None. Raises StoreError, and ExportMismatch for an unreadable mark."""
        try:
            content: dict[str, Any] = parse_json(self.store.read(self.name))
            if content["version"] > VERSION:
                raise ExportMismatch(f"{self.store.place} was written by a later version ({content['version']})")
            if not {"table_id", "format"} <= content.keys():
                raise KeyError("table_id")
            return content
        except ObjectMissing:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportMismatch(f"{self.store.place / self.name} is not what an exporter writes: {error}") from error

    def check(self, table_id: str) -> bool:
        """Returns whether there is a mark. Raises ExportMismatch if it has another id than the ledger."""
        found = self.read()
        if found is not None and found["table_id"] != table_id:
            raise ExportMismatch(
                f"{self.store.place} holds the table {found['table_id']}, and the ledger is of the table {table_id}: "
                f"{self._advice(found)}, or export to another address"
            )
        return found is not None

    @staticmethod
    def _advice(found: dict[str, Any]) -> str:
        if found.get("ledger") == STORED:
            return "the table's own ledger is stored with it, so leave --ledger out"
        return "name the ledger of this table by --ledger"


def check_no_table(layout: Layout, ledger: str) -> None:
    """Checks for a new ledger that there is no table yet. Raises StoreError, ExportMismatch."""
    if layout.has_table() if layout.store is None else _has_table(layout.store):
        raise ExportMismatch(
            f"{layout.place} holds a table, and {ledger} is missing or empty: put it back, name the ledger "
            "of this table by --ledger, or export to another address"
        )


def check_place_of(layout: Layout, noted: str | None) -> None:
    """Raises ExportMismatch if the ledger recorded another folder. For tables without a mark."""
    if noted not in (None, str(layout.folder)) and os.path.lexists(os.path.join(str(noted), TABLE)):
        raise ExportMismatch(
            f"the ledger is of the table in {noted}, not of that in {layout.folder}: name the ledger of this table by "
            "--ledger"
        )


def _has_table(store: Store) -> bool:
    return any(next(iter(store.list_objects(folder)), None) is not None for folder in (FOLDER, TABLE))
