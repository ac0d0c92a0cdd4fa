"""What a store promises: an object is made once, and is replaced only by who knows its present state.

Two exporters cannot both publish because of these two promises. Contents that are put must be unique to the writer: so
a put whose answer was lost is recognized when the object is read back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from spark_export.store.data import DataFiles
from spark_export.store.errors import ObjectChanged, ObjectExists, ObjectMissing, StoreError
from spark_export.store.place import Place


class PutUnclear(StoreError):
    """A put was not answered. The object may have been written or not."""


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing shows it. name: relative to the store's place. modified_us: the time of its last put by
    the store's clock, in microseconds since 1970."""

    name: str
    size_bytes: int
    modified_us: int


@dataclass(frozen=True)
class Tagged:
    """The contents of an object, and the tag that its next `swap` must give."""

    data: bytes
    tag: str


class Store(ABC):
    """The objects below one place. The names of objects are relative to the place. Every method blocks, raises
    StoreError, and may be called by several threads.

    options: as completed by `complete_options`.
    """

    def __init__(self, place: Place, options: dict[str, str]) -> None:
        self.place = place
        self.options = options

    @cached_property
    def data(self) -> DataFiles:
        """The same objects as files for pyarrow."""
        return DataFiles(self.place, self.options)

    def read(self, name: str) -> bytes:
        """The contents of an object. Raises ObjectMissing."""
        return self.read_tagged(name).data

    def create(self, name: str, data: bytes) -> str:
        """Makes an object. Returns its tag. Raises ObjectExists if another writer has made it.

        Invariant: of all writers that create one name, exactly one succeeds.
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
        """Replaces the object that has this tag. Returns the new tag. Raises ObjectChanged if another writer has
        replaced or removed the object.

        Invariant: of all writers that swap one tag, exactly one succeeds.
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

    def _find(self, name: str) -> Tagged | None:
        try:
            return self.read_tagged(name)
        except ObjectMissing:
            return None

    @abstractmethod
    def read_tagged(self, name: str) -> Tagged:
        """The contents and the tag of an object. Raises ObjectMissing."""

    @abstractmethod
    def list_objects(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """The objects in the folder `prefix` and in folders below it, in the order of their names. after: names up to
        this one are left out."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Removes objects. A name without an object is no error."""

    @abstractmethod
    def _put_new(self, name: str, data: bytes) -> str:
        """Makes an object. Raises ObjectExists, PutUnclear."""

    @abstractmethod
    def _put_over(self, name: str, data: bytes, tag: str) -> str:
        """Replaces the object that has this tag. Raises ObjectChanged, PutUnclear."""
