"""The ledger of a table on a store: an SQLite file in a folder of this machine, and its copy in the store.

After each committed change the copy is replaced by a put that succeeds only if nobody else has replaced it. So the
exporter that opened the ledger last is the only one that can change it, and it alone can bring a run to the state in
which it is published. No lock is needed, and a killed exporter leaves none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_export.exporter.errors import ExportMismatch, LedgerError, TakenOver
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.store import Store

LEDGER_OBJECT = "_export/ledger.sqlite"
TABLE_OBJECT = "_export/table.json"
"""The object that says which table is at an address. It is made once."""
VERSION = 1


class StoredLedger:
    """The copy of one ledger. path: the SQLite file on this machine."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._tag: str | None = None
        self._unclear: set[str] = set()
        self._lost: TakenOver | None = None

    def fetch(self) -> bool:
        """Brings the file to the state of the copy. Returns whether the copy exists; without one, leaves the file as it
        is. Raises StoreError."""
        try:
            found = self._store.read_tagged(LEDGER_OBJECT)
        except ObjectMissing:
            return False
        if found.tag != self._tag:
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_bytes(found.data)
            os.replace(new, self._path)
            self._tag = found.tag
        return True

    def save(self) -> None:
        """Brings the copy to the state of the file. Raises TakenOver if another exporter has changed the copy, now and
        at every later call; raises LedgerError if the store does not answer, and the next call tries again."""
        data = self._path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        with self._told():
            self._resolve()
            self._unclear.add(digest)
            if self._tag is None:
                self._tag = self._store.create(LEDGER_OBJECT, data)
            else:
                self._tag = self._store.swap(LEDGER_OBJECT, data, self._tag)
            self._unclear.clear()

    def check(self) -> None:
        """Raises TakenOver if another exporter has changed the copy; LedgerError if the store does not answer."""
        with self._told():
            self._resolve()
            if self._store.read_tagged(LEDGER_OBJECT).tag != self._tag:
                raise TakenOver("the ledger was replaced")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turns errors of the store within the `with` block into the ledger's. After TakenOver, raises it at once."""
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except (ObjectExists, ObjectChanged, TakenOver) as error:
            self._lost = TakenOver(
                f"another exporter has taken over the table {self._store.place}; this one publishes nothing more"
            )
            raise self._lost from error
        except StoreError as error:
            raise LedgerError(f"the ledger cannot be kept: {error}") from error

    def _resolve(self) -> None:
        """Finds out whether a put took effect whose answer was lost."""
        if not self._unclear:
            return
        try:
            found = self._store.read_tagged(LEDGER_OBJECT)
        except ObjectMissing:
            if self._tag is not None:
                raise TakenOver("the ledger was removed") from None
            return
        if found.tag != self._tag:
            if hashlib.sha256(found.data).hexdigest() not in self._unclear:
                raise TakenOver("the ledger was replaced")
            self._tag = found.tag
        self._unclear.clear()


def settle_table(store: Store, table_id: str, table_format: str, *, now_us: int) -> str:
    """Returns the id of the table at an address; makes it if there is none. Raises ExportMismatch for a table of
    another format, StoreError."""
    made = {"version": VERSION, "table_id": table_id, "format": table_format, "made_us": now_us}
    try:
        store.create(TABLE_OBJECT, json.dumps(made).encode())
    except ObjectExists:
        found = read_table(store)
        if found is not None and found["format"] != table_format:
            raise ExportMismatch(
                f"{store.place} holds a table in the format {found['format']}, not {table_format}; say --format "
                f"{found['format']}, or export to another address"
            ) from None
        assert found is not None
        return str(found["table_id"])
    return table_id


def read_table(store: Store) -> dict[str, Any] | None:
    """The description of the table at an address, or None if there is none. Raises ExportMismatch, StoreError."""
    try:
        content: dict[str, Any] = json.loads(store.read(TABLE_OBJECT))
        if content["version"] > VERSION:
            raise ExportMismatch(f"{store.place} was written by a later version ({content['version']})")
        return content
    except ObjectMissing:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ExportMismatch(f"{store.place / TABLE_OBJECT} is not what an exporter writes: {error}") from error


def check_id(store: Store, table_id: str) -> None:
    """Raises ExportMismatch if the ledger is of another table than the one at the address."""
    found = read_table(store)
    if found is not None and found["table_id"] != table_id:
        raise ExportMismatch(
            f"{store.place} holds the table {found['table_id']}, and the ledger is of the table {table_id}: name the "
            "ledger of this table, or export to another address"
        )
