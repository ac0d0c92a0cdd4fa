"""The errors of stores. Each text is one line that names the store and the object, and says what to do."""

from __future__ import annotations

from spark_export.exporter.errors import ExportError


class StoreError(ExportError):
    """The store refused a request, or did not answer after several tries."""


class PlaceRefused(StoreError):
    """No store serves this address."""


class ObjectExists(StoreError):
    """An object was to be made, and another writer has already made an object of this name."""


class ObjectChanged(StoreError):
    """An object was to be replaced, and another writer has replaced or removed it since it was read."""


class ObjectMissing(StoreError):
    """The store has no object of this name."""
