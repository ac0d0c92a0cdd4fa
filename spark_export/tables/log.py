"""The log of an exported table, which decides what is exported: the interface and the shared code of the formats.
`open_table` chooses the class of a format, which loads the library of the format.

A commit of an export adds files and moves the positions of the partitions in one transaction of the table's own log.
Positions only grow. A commit of another program, such as DELETE, MERGE, OPTIMIZE or RESTORE, changes rows and leaves
the positions alone, so that no row comes back that somebody removed.
"""

from __future__ import annotations

import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from pyarrow.fs import FileSelector

from ockam.files.durable_files import give_tree
from spark_export.tables import model
from spark_export.tables.address import StoreLocation, parse_place
from spark_export.tables.errors import EarlierVersion, ExportError, PositionsMoved, TableRefused
from spark_export.tables.filesystem import open_filesystem, remove_files, store_errors, sync_new

T = TypeVar("T")
OldRuns = Mapping[int, tuple[Sequence[model.IndexRange], Sequence[model.DataFile]]]
"""The ranges and the data files of each run of an earlier version's export, by the run's number."""
Forgotten: TypeAlias = tuple[str, bytes | None, int]
"""Messages to forget: their stream, their key (None: all messages), and until when the node stored them."""

COMMIT_ATTEMPTS_MAX = 10
"""How often a commit is tried when other programs change the table at the same time."""
RUN_KEY, RANGES_KEY, PLAN_KEY = "stream-node.run", "stream-node.ranges", "stream-node.plan"
"""The keys of what a commit of an export says in the log: the run's number, index ranges and `FilesPlan.plan_id`."""
UPKEEP_KEY, UPKEEP = "stream-node.upkeep", "UPKEEP"
"""The log's key of an exporter's commit without ranges, such as a compaction, and what `commits` returns for it."""
DESCRIPTION = "Messages of stream-node, one row each: stream, partition, era and index name one message."
"""The description of a table that an exporter has made."""
EARLIER_MARK = "_export/table.json"
"""A file of earlier versions beside a table on a store. It stays after `migrate`."""
SMALL_BYTES = 64 * 1024 * 1024
"""Compaction merges files smaller than this size, in bytes: half of a full file."""
ORPHANS_S = 24 * 3600
"""The age in seconds from which files in no version are removed. A younger file can belong to a run at work."""
CATALOG_FILE = "catalog.sqlite"
FORMATS: Final = ("parquet", "delta", "iceberg")
URL_SIGNS: Final = frozenset("?#%")
"""Signs in the path of a folder that deltalake and pyiceberg decode as in a URL: they would write elsewhere or fail."""


@dataclass(frozen=True)
class CatalogChoice:
    """The user's choice of a catalog for an Iceberg table, by its name in pyiceberg's configuration.

    options: properties of the catalog for pyiceberg, such as `uri`. table: NAMESPACE.NAME in the catalog.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None


class CommitConflict(Exception):
    """Another program changed the table during a commit, or the answer of the store or catalog was lost."""


@dataclass(frozen=True)
class TableFile:
    """A data file of the table at one moment, with its address in the table's log. A field is None if the log lacks it.

    partition: the values of the columns that are in the log only. indexes: the lowest and the highest index.
    has_removed_rows: whether rows of the file may be marked as removed, which only the table's library can tell.
    """

    address: str
    file_bytes: int
    rows: int | None
    partition: Mapping[str, Any] = field(default_factory=dict)
    indexes: tuple[int, int] | None = None
    has_removed_rows: bool = False


@dataclass(frozen=True)
class OwnersRule:
    """How long old versions of a table are retained, as its owner has set by properties of the table (`said`).

    keep_s: for how many seconds at least; infinite if nothing may be removed. versions_min: the number of versions of
        each branch that are kept at any age.
    """

    keep_s: float = 0.0
    versions_min: int = 1
    said: str = ""


class TableLog(ABC):
    """The table of one export and its log. A method opens what it needs, so that nothing stays open between two runs.

    place: the address of the export; options: the options of its store. address: the address of the table itself.
    """

    format: str
    address: str

    def __init__(self, place: StoreLocation, options: Mapping[str, str]) -> None:
        self.place = place
        self.options = dict(options)

    @abstractmethod
    def exists(self) -> bool:
        """Returns whether the table exists. Raises ExportError if that cannot be found out."""

    @abstractmethod
    def create(self, columns: pa.Schema) -> None:
        """Creates the table if it does not exist. columns: all columns of the rows, with `stream`, `partition` and
        `era`."""

    @abstractmethod
    def table_id(self) -> str:
        """Returns the id of the table, which no other table has, also if it is renamed or moved."""

    @abstractmethod
    def column_names(self) -> Sequence[str]:
        """Returns the names of the table's columns. For plain Parquet, they are the columns of one of the latest
        files."""

    def refusal_of(self, stream: str) -> str | None:
        """Returns why the table cannot have messages of this stream, or None."""
        return None

    @abstractmethod
    def load(self) -> model.TableState:
        """Returns the present state. Raises TableRefused if the table cannot be used, and ExportError."""

    def files_plan(self, state: model.TableState, columns: pa.Schema, **more: Any) -> model.FilesPlan:
        """Returns how the tasks of a run write files. more: other fields of `FilesPlan`. Raises TableRefused."""
        root, schema, partition_by = self._shape(columns)
        more |= {"forgotten": state.forgotten, "folders": self.format == "parquet", "version": state.version}
        return model.FilesPlan(root, schema, partition_by, self.options, **more)

    @abstractmethod
    def _shape(self, columns: pa.Schema) -> tuple[str, pa.Schema, Sequence[model.PartitionField]]:
        """Returns the folder of new files, the columns in them, and the partitioning, for rows with these columns."""

    def append(self, plan: model.FilesPlan, written: model.Written) -> model.Commit:
        """Adds the files of a run and moves its positions, in one transaction. The call can be repeated.

        Raises PositionsMoved, and changes nothing, if another exporter or a `forget` was faster. Raises ExportError.
        """
        ranges = model.join(written.ranges)
        if not ranges:
            raise ExportError("nothing was written, so there is nothing to add to the table")

        def commit() -> model.Commit:
            state = self.load()
            # The positions do not show whether this run is in the table: another exporter can have committed the same
            # messages. Each commit is a file to read, so only those since the plan are read.
            for each in self.commits(plan.version):
                if isinstance(each, model.Commit) and each.plan_id == plan.plan_id:
                    # The answer to the commit was lost, and the table has these files, so they stay.
                    self.abandon(plan)
                    return model.Commit(each.run, ranges)
            model.check_next(state, ranges)
            if state.forgotten != plan.forgotten:
                raise PositionsMoved("messages were forgotten while the run wrote them; the next run leaves them out")
            self._commit(plan, state, written, ranges)
            return model.Commit(state.run + 1, ranges)

        return self._repeat("the run was not added", commit)

    def _repeat(self, failure: str, work: Callable[[], T]) -> T:
        """Does work that ends with a commit, again after each CommitConflict. Raises ExportError after the last try."""
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            try:
                return work()
            except CommitConflict as error:
                conflict = error
            finally:
                self._give()
            threading.Event().wait(random.uniform(0, 0.02 * 2**attempt))
        raise ExportError(f"{self.address}: {failure}: {conflict}; try again")

    def abandon(self, plan: model.FilesPlan, files: Sequence[model.DataFile] = ()) -> None:
        """Removes the files of a run that is not in the table. Any left are removed with the table's old files."""
        remove_files(plan, files)

    def _give(self) -> None:
        """Gives files that the superuser made in another user's folder to that user, whose exporter continues here."""
        if self.place.is_local:
            give_tree(self.place.folder)

    def _sync(self, address: str, since_s: float = 0.0) -> None:
        """Makes durable the files that a library has written into a folder since a time. Data files are durable
        already."""
        if (place := parse_place(address)).is_local:
            sync_new(place.folder, since_s)
        self._give()

    @abstractmethod
    def _commit(
        self, plan: model.FilesPlan, state: model.TableState, written: model.Written, ranges: Sequence[model.IndexRange]
    ) -> None:
        """Commits if the table is still in `state`, or was only changed by other programs. Raises CommitConflict."""

    @abstractmethod
    def has_old_run(self, old_id: str, run: int) -> bool:
        """Returns whether the table has a run of an earlier version's export, whose id was `old_id`."""

    @abstractmethod
    def adopt(self, old_id: str, runs: OldRuns, positions: model.Positions) -> None:
        """Takes over an earlier version's export with the id `old_id`: sets the positions. Can be repeated."""

    @abstractmethod
    def commits(self, since: int = -1) -> list[model.Commit | str]:
        """Returns the commits that the log of the loaded table still has, newest first. A text is the operation of
        another program, or UPKEEP. Commits up to the version `since` can be left out."""

    @abstractmethod
    def list_files(self) -> list[TableFile]:
        """Returns the data files of the table at this moment."""

    @abstractmethod
    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the table as a reader of the format sees them, without columns that the table lacks."""

    def compact(self, *, files_min: int = 2) -> int:
        """Merges small files of the table; its rows stay the same. Returns the number of merged files."""
        return self._repeat("nothing is merged", lambda: self._rewrite(files_min, None))

    @abstractmethod
    def expire(self, keep_s: float, *, exactly: bool = False) -> int:
        """Removes files and old versions that were replaced at least `keep_s` seconds ago. Returns their number.

        exactly: whether to remove also files and versions that the table's owner wants to keep for longer
        (`owners_rule`).
        """

    def is_own(self) -> bool:
        """Returns whether an exporter made the table, and no other program."""
        return True

    def owners_rule(self) -> OwnersRule:
        """Returns how long old versions are retained by the wish of the table's owner."""
        return OwnersRule()

    def versions_with(self, stream: str, key: bytes | None) -> list[str]:
        """Returns the names of versions that `expire` never removes, and that have rows of a stream or of one key."""
        return []

    def forget(self, stream: str, key: bytes | None, until_us: int) -> int:
        """Erases the rows of a stream, or those with one key, that the node has stored until a time, and records that
        they must never be exported again. Returns their number. Older versions have them until `expire`."""
        return self._repeat("nothing is forgotten", lambda: self._rewrite(0, (stream, key, until_us)))

    @abstractmethod
    def _rewrite(self, files_min: int, record: Forgotten | None) -> int:
        """Writes rows again, in one commit. Raises CommitConflict.

        With a record: adds it to the state of the table, leaves out the rows that it names, and returns the number of
        these rows. Without: merges the small files of each partition with at least `files_min` of them, and returns the
        number of merged files.
        """


def open_table(
    place: StoreLocation,
    table_format: str | None = None,
    options: Mapping[str, str] | None = None,
    catalog: CatalogChoice | None = None,
) -> TableLog:
    """Returns the table at an address, which need not exist. Raises ExportError.

    table_format: None: the format of the existing table, or the usual format for the address. options: of the store.
    """
    if table_format is None:
        usual = "iceberg" if catalog else "parquet" if place.is_local else "delta"
        table_format = find_format(place, options or {}) or usual
    if table_format in ("delta", "iceberg") and place.is_local and (signs := URL_SIGNS & set(place.path)):
        raise TableRefused(
            f"{place}: libraries of {table_format} take {' '.join(sorted(signs))} in a path for a part of a URL; give "
            "the folder another name, or export with --format parquet"
        )
    if table_format == "iceberg":
        from spark_export.tables.iceberg import IcebergLog

        return IcebergLog(place, options or {}, catalog)
    if table_format == "delta":
        from spark_export.tables.delta import DeltaLog

        return DeltaLog(place, options or {})
    if table_format == "parquet":
        from spark_export.tables.parquet_folder import ParquetFolderLog

        return ParquetFolderLog(place, options or {})
    raise TableRefused(f"the format {table_format}: one of {', '.join(FORMATS)}")


def find_format(place: StoreLocation, options: Mapping[str, str]) -> str | None:
    """Returns the format of the table at an address, or None if there is no table. Raises ExportError, and
    EarlierVersion if only an earlier version can have a table there."""
    filesystem, root = open_filesystem(str(place), options)
    delta, own, iceberg, parquet = "_delta_log", "messages/_delta_log", CATALOG_FILE, "generations"
    with store_errors(str(place)):
        names = (delta, own, iceberg, "_export.json", parquet, EARLIER_MARK)
        found = filesystem.get_file_info([f"{root}/{name}" for name in names])
        there = {each.path.removeprefix(f"{root}/") for each in found if each.type.name != "NotFound"}
        if not place.is_local:
            # A store has no folders, so the listing of one shows whether there is a file below it.
            selectors = {name: FileSelector(f"{root}/{name}", allow_not_found=True) for name in (delta, own)}
            there |= {name for name, each in selectors.items() if filesystem.get_file_info(each)}
    if there & {delta, own}:
        return "delta"
    if iceberg in there or ("_export.json" in there and parquet not in there):
        return "iceberg"
    if EARLIER_MARK in there:
        raise EarlierVersion(place)
    return "parquet" if parquet in there else None


def said_of(run: int, ranges: Iterable[model.IndexRange], plan: model.FilesPlan) -> dict[str, str]:
    """Returns the properties that a commit of an export has in the log."""
    said = json.dumps(ranges_to_rows(ranges), ensure_ascii=False)
    return {RUN_KEY: str(run), RANGES_KEY: said, PLAN_KEY: plan.plan_id}


def commit_of(said: Mapping[str, Any], operation: str) -> model.Commit | str:
    """Reads an entry of `TableLog.commits` from the properties of a commit."""
    if RANGES_KEY in said:
        ranges = ranges_from_rows(json.loads(said[RANGES_KEY]))
        return model.Commit(int(said[RUN_KEY]), ranges, said.get(PLAN_KEY, ""))
    return UPKEEP if UPKEEP_KEY in said else operation


def ranges_to_rows(ranges: Iterable[model.IndexRange]) -> list[list[Any]]:
    return [[*each.of, each.begin, each.end, each.lost] for each in ranges]


def positions_to_json(positions: model.Positions) -> list[list[Any]]:
    return [[*of, position.end, position.last_us] for of, position in sorted(positions.items())]


def positions_from_json(rows: Iterable[Sequence[Any]]) -> dict[model.Incarnation, model.TablePosition]:
    return {model.Incarnation(*of): model.TablePosition(end, last_us) for *of, end, last_us in rows}


def ranges_from_rows(rows: Iterable[Sequence[Any]]) -> list[model.IndexRange]:
    return [model.IndexRange(model.Incarnation(*of), begin, end, lost=lost) for *of, begin, end, lost in rows]
