"""Opens the store that an address names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_export.store.options import complete_options
from spark_export.store.place import FILE, StoreLocation, parse_place
from spark_export.store.store import Store


def open_store(address: str | Path | StoreLocation, options: Mapping[str, str] | None = None) -> Store:
    """Opens the store that an address names. Sends no request. Raises PlaceRefused, ExtraMissing."""
    place = address if isinstance(address, StoreLocation) else parse_place(address)
    complete = complete_options(place, options or {})
    if place.scheme == FILE:
        from spark_export.store.local_store import LocalStore

        return LocalStore(place, complete)
    if place.scheme == "hdfs":
        from spark_export.store.versioned_store import VersionedStore

        return VersionedStore(place, complete)
    from spark_export.store.object_store import ObjectStore

    return ObjectStore(place, complete)
