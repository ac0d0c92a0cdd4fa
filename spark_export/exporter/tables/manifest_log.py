"""Reads and extends the log of a table on a store: manifests, each added by a conditional put of the next number."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from spark_export.exporter.errors import ExportMismatch, TakenOver
from spark_export.exporter.tables.manifest import FOLDER, Manifest, TableState, decode, encode, name_of, number_of
from spark_export.store.errors import ObjectExists, StoreError
from spark_export.store.store import Store


class ManifestLog:
    """The log of the table at the address of one store, of which `state` is known.

    Invariant: the next manifest gets the number after `state`. If another writer added a manifest since `state` was
    read, this number exists already and nothing is added.
    """

    def __init__(self, store: Store, *, now_us: Callable[[], int]) -> None:
        self._store = store
        self._now_us = now_us
        self._writer = uuid.uuid4().hex
        self._is_unclear = False
        self.state = TableState()

    def load(self) -> TableState:
        """Reads the manifests after `state`, and returns the new `state`. Raises StoreError, ExportMismatch."""
        self.state = self.peek()
        return self.state

    def settle(self) -> None:
        """If the last put had no answer, finds out whether the store has the manifest, and adds it to `state`. Raises
        TakenOver."""
        if not self._is_unclear:
            return
        state = self.state
        for number in self._later_numbers():
            manifest, _ = decode(self._store.read(name_of(number)), name_of(number))
            if manifest.writer != self._writer:
                raise self._taken_over(number)
            state = state.after(manifest)
        self.state = state
        self._is_unclear = False

    def peek(self) -> TableState:
        """Returns the present state of the table as `load` does. `state` stays, so `append` notices other writers."""
        numbers = self._later_numbers()
        state, waiting = self.state, list[Manifest]()
        # Reads backwards to the last checkpoint, and then applies the later manifests in order.
        for number in reversed(numbers):
            manifest, checkpoint = decode(self._store.read(name_of(number)), name_of(number))
            if checkpoint is not None:
                state = checkpoint
                break
            waiting.append(manifest)
        for manifest in reversed(waiting):
            state = state.after(manifest)
        return state

    def append(self, table_id: str, kind: str, **fields: Any) -> TableState:
        """Adds the next manifest, and returns the new state. Raises TakenOver if another writer has taken its number.

        After a StoreError, the store may have the manifest.
        """
        self.settle()
        number = self.state.number + 1
        fields.setdefault("generation", self.state.generation)
        manifest = Manifest(
            number=number, table_id=table_id, kind=kind, made_us=self._now_us(), writer=self._writer, **fields
        )
        after = self.state.after(manifest)
        try:
            self._store.create(name_of(number), encode(manifest, after))
        except ObjectExists as error:
            raise self._taken_over(number) from error
        except StoreError:
            self._is_unclear = True
            raise
        self.state = after
        return after

    def _later_numbers(self) -> list[int]:
        names = [each.name for each in self._store.list_objects(FOLDER, after=name_of(self.state.number))]
        return sorted(number for number in map(number_of, names) if number is not None)

    def _taken_over(self, number: int) -> TakenOver:
        return TakenOver(
            f"another exporter has published into {self._store.place} meanwhile (manifest {number}); this one "
            "publishes nothing more"
        )

    def check_table(self, table_id: str) -> None:
        """Raises ExportMismatch if the log belongs to another table."""
        if self.state.number and self.state.table_id != table_id:
            raise ExportMismatch(
                f"{self._store.place} holds the table {self.state.table_id}, and the ledger is of {table_id}: "
                "name the ledger of this table, or export to another address"
            )
