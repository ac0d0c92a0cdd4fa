"""The ledger of a table on a store: a local SQLite file and its copy in the store.

After each committed change, the exporter replaces the copy by a conditional put, which succeeds only if no other
exporter has replaced the copy. No lock is needed, and so a killed exporter leaves no lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ockam.files.durable_files import write_durably
from spark_export.exporter.errors import LedgerError, TakenOver
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.store import Store

LEDGER_OBJECT = "_export/ledger.sqlite"


class StoredLedger:
    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._tag: str | None = None
        self._unclear: set[str] = set()
        self._is_saved = True
        self._lost: TakenOver | None = None

    def fetch(self) -> bool:
        """Replaces the local file by the copy. Returns False if there is no copy. Raises StoreError."""
        try:
            found = self._store.read_tagged(LEDGER_OBJECT)
        except ObjectMissing:
            return False
        if found.tag != self._tag:
            write_durably(self._path, found.data)
            self._tag = found.tag
        return True

    def save(self) -> None:
        """Replaces the copy by the local file. After a LedgerError, the next call tries again.

        Raises TakenOver, then at every later call, if another exporter has changed the copy.
        """
        self._is_saved = False
        data = self._path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        with self._map_errors():
            self._resolve()
            self._unclear.add(digest)
            if self._tag is None:
                self._tag = self._store.create(LEDGER_OBJECT, data)
            else:
                self._tag = self._store.swap(LEDGER_OBJECT, data, self._tag)
            self._unclear.clear()
        self._is_saved = True

    def check(self) -> None:
        """Checks that the copy is as this exporter left it. Repeats a `save` that failed before."""
        if not self._is_saved:
            self.save()
            return
        with self._map_errors():
            self._resolve()
            if self._store.read_tagged(LEDGER_OBJECT).tag != self._tag:
                raise TakenOver("the ledger was replaced")

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Translates errors of the store into TakenOver and LedgerError. A TakenOver is raised again at every later
        use."""
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
        """After a put without an answer, reads the copy to find out whether the put took effect."""
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
