"""Expires the snapshots of an Iceberg table, and finds the data and metadata files that no snapshot needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from spark_export.exporter.errors import ExportError, ExtraMissing
from spark_export.exporter.model import RunFile
from spark_export.exporter.tables.flat_table import FlatTable
from spark_export.store.data import one_line

try:
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, RESTError
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"the format iceberg needs the extra `iceberg` ({error.name}): pip install 'stream-node[iceberg]'"
    ) from error


class IcebergUpkeep(FlatTable):
    """Removes old versions of an Iceberg table. A subclass opens the table.

    A reader that has opened an old version reads its metadata, manifests and data files. So all these files are kept
    for `keep_s` seconds after the version was replaced.
    """

    def expire_log(self, now_s: float, keep_s: float) -> int:
        """Expires snapshots that were replaced at least `keep_s` seconds ago. Returns their number."""
        with map_errors("old snapshots cannot be expired"):
            table = self._open()
            before = len(table.snapshots())
            # A snapshot is the current one from its own time to the time of the next snapshot.
            times = sorted((each.timestamp_ms, each.snapshot_id) for each in table.snapshots())
            limit_ms = (now_s - keep_s) * 1000
            old = [number for (_, number), (end_ms, _) in pairwise(times) if end_ms <= limit_ms]
            protected = {ref.snapshot_id for ref in table.metadata.refs.values()}
            if expired := [number for number in old if number not in protected]:
                table.maintenance.expire_snapshots().by_ids(expired).commit()
                self.sync()
            return before - len(self._open().snapshots())

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        # The metadata files are listed before the table is opened: see `cleaning.py`.
        metadata = list(self._list_metadata())
        data = self._find_expired_data(current, now_s, keep_s)
        with map_errors("old metadata cannot be found"):
            return data + self._find_old_metadata(self._open(), metadata, now_s - keep_s)

    def _find_old_metadata(self, table: Any, listed: Sequence[tuple[str, float]], before_s: float) -> list[str]:
        """Returns the names of manifests, manifest lists and metadata files that no snapshot needs and that are old
        enough.

        listed: the names of all metadata files, and when they were written, in seconds since 1970.
        """
        needed = {table.metadata_location}
        for snapshot in table.snapshots():
            needed.add(snapshot.manifest_list)
            needed.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
        names = {name_of(each) for each in needed}
        # The log has the former metadata files in their order, each with the time when it was written.
        former = [(name_of(each.metadata_file), each.timestamp_ms / 1000) for each in table.metadata.metadata_log]
        starts_s = [*(start_s for _, start_s in former), table.metadata.last_updated_ms / 1000]
        replaced_s = {name: end_s for (name, _), end_s in zip(former, starts_s[1:], strict=True)}

        def is_old(name: str, written_s: float) -> bool:
            # A metadata file that the log does not name was replaced before the first one in the log, or never used.
            end_s = replaced_s.get(name_of(name), starts_s[0]) if name.endswith(".json") else 0.0
            return max(written_s, end_s) <= before_s

        return [
            name
            for name, written_s in listed
            if name_of(name) not in names and name.endswith((".avro", ".json")) and is_old(name, written_s)
        ]

    def _find_expired_data(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        """Returns the names of the data files that no snapshot needs and that were retained long enough."""
        return super().find_expired(current, now_s, keep_s)

    def _list_metadata(self) -> Iterator[tuple[str, float]]:
        """Yields the name of each metadata file, and when it was written, in seconds since 1970."""
        for path in self._log.iterdir():
            yield str(path.relative_to(self._layout.table)), path.stat().st_mtime

    def _names_in_log(self) -> set[str]:
        with map_errors("the manifests cannot be read"):
            table, names = self._open(), set()
            for snapshot in table.snapshots():
                for manifest in snapshot.manifests(table.io):
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    names |= {name_of(entry.data_file.file_path) for entry in entries}
            return names

    def _open(self) -> Any:
        raise NotImplementedError


def name_of(address: str) -> str:
    return unquote(address).rpartition("/")[2]


@contextmanager
def map_errors(what: str) -> Iterator[None]:
    """Turns errors of `pyiceberg` and of the catalog into ExportErrors. `what` is the failed step."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise ExportError(f"{what}: {reason}") from error
    except (ValueError, OSError, RESTError, CommitFailedException, CommitStateUnknownException) as error:
        raise ExportError(f"{what}: {one_line(error)}") from error
