"""The interface of a store. Of several writers that create or replace the same object, exactly one succeeds.

Therefore two exporters cannot both publish the same version of a table. The contents that a writer stores must differ
from the contents of every other writer. If the answer to a write is lost, reading the object then shows whether the
write succeeded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from spark_export.store.data import DataFiles
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.place import StoreLocation


class PutUnclear(StoreError):
    """The store did not answer a write. It is not known whether the object was written."""


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing.

    name: relative to the address of the store.
    modified_us: the time of the last write by the clock of the store, in microseconds since 1970.
    """

    name: str
    size_bytes: int
    modified_us: int


@dataclass(frozen=True)
class TaggedObject:
    """The contents of an object, and the tag by which `Store.swap` notices that another writer replaced them."""

    data: bytes
    tag: str


class Store(ABC):
    """A store of named objects (byte strings) under one address, to which names are relative.

    Every method blocks and can raise StoreError. Several threads can call the methods at the same time.
    """

    def __init__(self, place: StoreLocation, options: dict[str, str]) -> None:
        self.place = place
        self.options = options

    @cached_property
    def data(self) -> DataFiles:
        """The objects of the store, as files for pyarrow."""
        return DataFiles(self.place, self.options)

    def read(self, name: str) -> bytes:
        return self.read_tagged(name).data

    def create(self, name: str, data: bytes) -> str:
        """Creates an object. Returns its tag. Raises ObjectExists if an object has this name.

        Invariant: of all writers that create an object with the same name, exactly one succeeds.
        """
        try:
            return self._put_new(name, data)
        except (ObjectExists, PutUnclear) as error:
            found = self._find(name)
            if found is not None and found.data == data:
                return found.tag
            if found is not None:
                raise ObjectExists(f"{self.place / name} was made by another writer") from error
            raise

    def swap(self, name: str, data: bytes, tag: str) -> str:
        """Replaces the contents with this tag. Returns the new tag. Raises ObjectChanged if another writer changed
        them.

        Invariant: of all writers that replace an object with the same tag, exactly one succeeds.
        """
        try:
            return self._put_over(name, data, tag)
        except (ObjectChanged, PutUnclear) as error:
            found = self._find(name)
            if found is not None and found.data == data:
                return found.tag
            if found is not None and found.tag == tag:
                raise
            raise ObjectChanged(f"{self.place / name} was replaced by another writer") from error

    def _find(self, name: str) -> TaggedObject | None:
        try:
            return self.read_tagged(name)
        except ObjectMissing:
            return None

    @abstractmethod
    def read_tagged(self, name: str) -> TaggedObject:
        """Returns the contents and the tag of an object. Raises ObjectMissing."""

    @abstractmethod
    def list_objects(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yields the objects in the folder `prefix` and its subfolders by name, those after the name `after`."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Removes objects. Names of objects that do not exist are ignored."""

    @abstractmethod
    def _put_new(self, name: str, data: bytes) -> str:
        """Creates an object. Returns its tag. Raises ObjectExists, PutUnclear."""

    @abstractmethod
    def _put_over(self, name: str, data: bytes, tag: str) -> str:
        """Replaces an object if it still has this tag. Returns the new tag. Raises ObjectChanged, PutUnclear."""
