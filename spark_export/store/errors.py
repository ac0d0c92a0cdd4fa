"""The errors of stores. The text of each error is one line."""

from __future__ import annotations

from spark_export.exporter.errors import ExportError


class StoreError(ExportError):
    """The store refused a request, or did not answer after several tries."""


class PlaceRefused(StoreError):
    """The address of a table is wrong or has an unknown scheme, or a store option is wrong."""


class ObjectExists(StoreError):
    """An object cannot be created, because another writer has already created an object with this name."""


class ObjectChanged(StoreError):
    """An object cannot be replaced, because another writer has replaced or removed the object since the last read."""


class ObjectMissing(StoreError):
    """The store has no object with this name."""
