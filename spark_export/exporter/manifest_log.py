"""The log of a table on a store: reads manifests, and adds the next one by a put that succeeds for one writer only."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from spark_export.exporter.errors import ExportMismatch, TakenOver
from spark_export.exporter.manifest import FOLDER, Manifest, TableState, decode, encode, name_of, number_of
from spark_export.store.errors import ObjectExists
from spark_export.store.store import Store


class ManifestLog:
    """The log below one store's address.

    Invariant: a writer adds a manifest only to the state that it has loaded. So a writer that was paused while another
    one added a manifest adds nothing: the number is taken.
    """

    def __init__(self, store: Store, *, now_us: Callable[[], int]) -> None:
        self._store = store
        self._now_us = now_us
        self._writer = uuid.uuid4().hex
        self.state = TableState()

    def load(self) -> TableState:
        """Reads the manifests that are new since the last call. Raises StoreError, ExportMismatch."""
        names = [each.name for each in self._store.list_objects(FOLDER, after=name_of(self.state.number))]
        numbers = sorted(number for number in map(number_of, names) if number is not None)
        state, waiting = self.state, list[Manifest]()
        # Backwards to the last checkpoint; then forwards again.
        for number in reversed(numbers):
            manifest, checkpoint = decode(self._store.read(name_of(number)), name_of(number))
            if checkpoint is not None:
                state = checkpoint
                break
            waiting.append(manifest)
        for manifest in reversed(waiting):
            state = state.after(manifest)
        self.state = state
        return state

    def append(self, table_id: str, kind: str, **fields: Any) -> TableState:
        """Adds the next manifest. fields: those of `Manifest`. Raises TakenOver if another writer has added it."""
        number = self.state.number + 1
        fields.setdefault("generation", self.state.generation)
        manifest = Manifest(
            number=number, table_id=table_id, kind=kind, made_us=self._now_us(), writer=self._writer, **fields
        )
        after = self.state.after(manifest)
        try:
            self._store.create(name_of(number), encode(manifest, after))
        except ObjectExists as error:
            raise TakenOver(
                f"another exporter has published into {self._store.place} meanwhile (manifest {number}); this one "
                "publishes nothing more"
            ) from error
        self.state = after
        return after

    def check_table(self, table_id: str) -> None:
        """Raises ExportMismatch if the log belongs to another table than the ledger."""
        if self.state.number and self.state.table_id != table_id:
            raise ExportMismatch(
                f"{self._store.place} holds the table {self.state.table_id}, and the ledger is of {table_id}: "
                "name the ledger of this table, or export to another address"
            )
