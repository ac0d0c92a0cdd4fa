"""An Iceberg table that records its export. `pyiceberg` writes the snapshots, the tasks write the files.

The positions are one property of the table, set in the same transaction as a snapshot. So they stay when snapshots
expire or are rolled back. Each commit here has a snapshot, and Iceberg refuses it if another snapshot came first.
Iceberg keeps absolute paths, so a folder with an Iceberg table cannot be moved.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice, pairwise
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ockam.files.durable_files import make_folder
from spark_export.tables import log, model
from spark_export.tables.address import FILE, StoreLocation, complete_options, renamed
from spark_export.tables.columns import fitting
from spark_export.tables.errors import EarlierVersion, ExportError, ExtraMissing, TableRefused
from spark_export.tables.files import rewrite_rows
from spark_export.tables.filesystem import CONNECT_S, one_line, open_filesystem
from spark_export.tables.log import CATALOG_FILE, CatalogChoice
from spark_export.tables.model import Commit, FilesPlan, IndexRange, PartitionField, Positions, TableState, Written
from stream_storage.failpoint import failpoint

try:
    from pyiceberg import exceptions
    from pyiceberg.catalog import load_catalog
    from pyiceberg.conversions import from_bytes
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo
    from pyiceberg.io.pyarrow import ArrowScan, parquet_files_to_data_files, schema_to_pyarrow
    from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
    from pyiceberg.table.snapshots import ancestors_of
    from pyiceberg.transforms import DayTransform, IdentityTransform
except ModuleNotFoundError as error:
    raise ExtraMissing(f"the format iceberg needs the library `pyiceberg` ({error.name} is missing)") from error

# pyiceberg warns of each column without minimum and maximum, which are left out on purpose.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

POSITIONS_KEY, FORGOTTEN_KEY = "stream-node.positions", "stream-node.forgotten"
CATALOG, TABLE_NAME = "stream-node", "export.messages"
"""The names of the catalog and the table in the SQLite file that a folder has if the user names no catalog."""
CATALOG_WAIT_S = 60
"""How long a statement in the SQLite file waits in seconds while another process, on a slow disk, changes the file."""
CHOICE = "_export.json"
"""The file at the export's address with the catalog that the user has chosen. It has no secrets."""
SECRETS = ("token", "credential", "secret", "password", "access-key")
SNAPSHOTS_MAX = 500
"""How many snapshots `expire` keeps at most. Each commit writes all of them again: 7 kB each at 100 partitions."""
KEPT, KEPT_MIN, GC = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep", "gc.enabled"
"""The properties with which the owner of a table says how long snapshots are kept, and whether files are removed."""
UNSURE = (exceptions.CommitFailedException, exceptions.CommitStateUnknownException, exceptions.RESTError, OSError)
"""The errors after which another commit may have come first, or nobody knows whether a commit is in the table."""
OPTION_NAMES = {
    FILE: {},
    "s3": {name: f"s3.{name}" for name in ("endpoint", "region", "anonymous")} | {"timeout_s": "s3.request-timeout"},
    "gs": {"endpoint": "gcs.service.host", "project": "gcs.project-id"},
    "abfs": {"account": "adls.account-name", "endpoint": "adls.blob-storage-authority"},
    "hdfs": {"user": "hdfs.user"},
}
"""The names that pyiceberg has for the options of each kind of store."""
PROPERTIES = {
    "comment": log.DESCRIPTION,
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergLog(log.TableLog):
    """The Iceberg table of an export. chosen: its catalog; None: the catalog that was chosen before, or an SQLite file
    in the folder."""

    format = "iceberg"

    def __init__(self, place: StoreLocation, options: Mapping[str, str], chosen: CatalogChoice | None = None) -> None:
        super().__init__(place, options)
        if chosen is not None:
            _refuse_secrets(chosen)
        self._chosen = chosen
        self._choice = chosen or self._read_choice()
        table = (self._choice and self._choice.table) or TABLE_NAME
        self._name = tuple(table.split("."))
        if len(self._name) < 2:
            raise TableRefused(f"--catalog-table {table}: it is NAMESPACE.NAME")
        self._catalog = self._open_catalog()
        self._table: Any = None
        self.address = ".".join(self._name)

    def exists(self) -> bool:
        with iceberg_errors("the catalog cannot be read"):
            return bool(self._catalog.table_exists(self._name))

    def create(self, columns: pa.Schema) -> None:
        with iceberg_errors(f"the table {self.address} cannot be made"):
            self._catalog.create_namespace_if_not_exists(self._name[:-1])
            if not self.exists():
                # Another exporter may make the table meanwhile.
                with suppress(exceptions.TableAlreadyExistsError, exceptions.CommitFailedException):
                    self._create(columns)
                self._open()
        if self._chosen is not None:
            filesystem, root = open_filesystem(str(self.place), self.options)
            if isinstance(filesystem, fs.LocalFileSystem):
                filesystem.create_dir(root, recursive=True)
            with filesystem.open_output_stream(f"{root}/{CHOICE}") as file:
                file.write(json.dumps(asdict(self._chosen), sort_keys=True).encode())
        self._give()

    def _create(self, columns: pa.Schema) -> None:
        location = f"{'file://' if self.place.is_local else ''}{self.place}/messages"
        change = self._catalog.create_table_transaction(self._name, columns, location=location, properties=PROPERTIES)
        with change.update_spec() as spec:
            spec.add_field("stream", IdentityTransform(), "stream_value")
            spec.add_field("timestamp", DayTransform(), "day")
        with change.update_sort_order() as order:
            order.asc("partition", IdentityTransform()).asc("index", IdentityTransform())
        change.commit_transaction()
        if self.place.is_local:
            make_folder(self.place.folder / "messages" / "data")
        self._sync(f"{location}/metadata")

    def table_id(self) -> str:
        return str(self._open().metadata.table_uuid)

    def column_names(self) -> Sequence[str]:
        return [each.name for each in self._open().schema().fields]

    def load(self) -> TableState:
        self._table = self._open()
        properties = self._table.properties
        # Earlier versions named a run ID/NUMBER.
        runs = (said.get(log.RUN_KEY, "") for said in _properties_of_snapshots(self._table))
        if log.RUN_KEY not in properties and any("/" in run for run in runs):
            raise EarlierVersion(self.address)
        positions = log.positions_from_json(json.loads(properties.get(POSITIONS_KEY, "[]")))
        run, forgotten = int(properties.get(log.RUN_KEY, "0")), json.loads(properties.get(FORGOTTEN_KEY, "{}"))
        return TableState(self._table.metadata.last_sequence_number, run, positions, forgotten)

    def _shape(self, columns: pa.Schema) -> tuple[str, pa.Schema, Sequence[PartitionField]]:
        table = self._table
        schema, partition_by = table.schema(), []
        for field in table.spec().fields:
            source, unit = schema.find_column_name(field.source_id), str(field.transform)
            is_time = unit in model.UNITS and source == "timestamp"
            if not is_time and not (unit == "identity" and source in ("stream", "partition", "era")):
                raise TableRefused(
                    f"the table {self.address} is partitioned by {unit}({source}); an export writes into tables that "
                    "are partitioned by stream, partition, era and the year, month, day or hour of timestamp"
                )
            partition_by.append(PartitionField(field.name, source, unit if is_time else ""))
        return f"{_address_of(table)}/data", fitting(schema.as_arrow(), columns, self.address), partition_by

    def _commit(self, plan: FilesPlan, state: TableState, written: Written, ranges: Sequence[IndexRange]) -> None:
        after, said = state.after(ranges), log.said_of(state.run + 1, ranges, plan)
        files = [f"{_address_of(self._table)}/data/{each.path}" for each in written.files]
        self._append(self._table, _numbers(after.run, after.positions), said, files)

    def _append(self, table: Any, properties: Mapping[str, str], said: Mapping[str, str], files: list[str]) -> None:
        with self._changing(table) as change:
            change.set_properties(properties)
            if files:
                change.add_files(files, snapshot_properties=said, check_duplicate_files=False)
            else:
                # The snapshot makes the commit fail if another one came first.
                with change.update_snapshot(snapshot_properties=said).fast_append():
                    pass

    def has_old_run(self, old_id: str, run: int) -> bool:
        return any(each.get(log.RUN_KEY) == f"{old_id}/{run}" for each in _properties_of_snapshots(self._open()))

    def adopt(self, old_id: str, runs: log.OldRuns, positions: Positions) -> None:
        table = self._open()
        if log.RUN_KEY not in table.properties:
            # Earlier versions set no comment, and wrote only into tables that they had made.
            properties = _numbers(max(runs, default=0), positions) | {"comment": log.DESCRIPTION}
            self._append(table, properties, {log.UPKEEP_KEY: "migrate"}, [])

    def commits(self, since: int = -1) -> list[Commit | str]:
        # A catalog may list the snapshots in any order. The first version of the format has no sequence numbers.
        snapshots = (self._table or self._open()).snapshots()
        found = sorted(snapshots, key=lambda each: (each.sequence_number or 0, each.timestamp_ms), reverse=True)
        said = [each.summary for each in found if not each.sequence_number or each.sequence_number > since]
        known = [each and log.commit_of(each.additional_properties, each.operation.value) for each in said]
        return [each or "?" for each in known]

    def list_files(self) -> list[log.TableFile]:
        table = self._open()
        index, found = table.schema().find_field("index"), []
        for task in self._plan_files(table.scan()):
            file, has_removed_rows = task.file, bool(task.delete_files)
            indexes = _bound(file.lower_bounds, index), _bound(file.upper_bounds, index)
            sizes = file.file_size_in_bytes, file.record_count
            found.append(
                log.TableFile(file.file_path, *sizes, {}, None if None in indexes else indexes, has_removed_rows)
            )
        return found

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        table = self._open()
        there = set(table.schema().column_names)
        chosen = tuple(name for name in columns if name in there)
        with iceberg_errors(f"the table {self.address} cannot be read"):
            yield from table.scan(selected_fields=chosen).to_arrow_batch_reader()

    def _rewrite(self, files_min: int, record: log.Forgotten | None) -> int:
        state = self.load()
        table = self._table
        if record is None:
            groups: dict[str, list[Any]] = defaultdict(list)
            for task in self._plan_files(table.scan()):
                if task.file.file_size_in_bytes < log.SMALL_BYTES:
                    groups[str(task.file.partition)].append(task)
            if not (tasks := [task for group in groups.values() if len(group) >= files_min for task in group]):
                return 0
        else:
            state = state.forget(*record)
            tasks = self._plan_files(table.scan(row_filter=EqualTo("stream", record[0])))
        plan = self.files_plan(state, schema_to_pyarrow(table.schema(), include_field_ids=False))
        # The manifests have the newest files first, and the rows are written in the order of their indexes.
        columns = [table.schema().find_field(name) for name in ("partition", "index")]

        def first(task: Any) -> list[Any]:
            return [str(task.file.partition), *(_bound(task.file.lower_bounds, each) or 0 for each in columns)]

        tasks = sorted(tasks, key=first)
        with iceberg_errors(f"files of {self.address} cannot be read"):
            rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_record_batches(tasks)
            before, made = rewrite_rows(plan, rows)
        failpoint("rewrite_written")
        # If this fails, the new files stay, because nobody knows whether the catalog has the commit.
        with self._changing(table) as change:
            if record is not None:
                change.set_properties({FORGOTTEN_KEY: json.dumps(state.forgotten, ensure_ascii=False)})
            with change.update_snapshot(snapshot_properties={log.UPKEEP_KEY: "rewrite"}).overwrite() as snapshot:
                for task in tasks:
                    snapshot.delete_data_file(task.file)
                paths = (f"{_address_of(table)}/data/{each.path}" for each in made)
                for each in parquet_files_to_data_files(table.io, change.table_metadata, paths):
                    snapshot.append_data_file(each)
        failpoint("rewritten")
        return len(tasks) if record is None else before - sum(each.rows for each in made)

    def expire(self, keep_s: float, *, exactly: bool = False) -> int:
        """Expires snapshots, and removes data and manifest files that only these had, and the files of killed runs.

        Snapshots beyond the latest SNAPSHOTS_MAX are expired at any age, unless the table's owner has set an age: every
        commit writes the list of all snapshots. pyiceberg itself removes no files, and Spark's procedure for orphans
        also removes the files of other programs.
        """
        now_s = time.time()
        with iceberg_errors(f"old snapshots of {self.address} cannot be expired"):
            table, rule = self._open(), self.owners_rule()
            if rule.keep_s == math.inf:
                return 0
            if not exactly:
                keep_s = max(keep_s, rule.keep_s)
            # The files are listed before the snapshots are read again: a file of a later commit is not in the list.
            filesystem, root = open_filesystem(_address_of(table), self.options)
            folders = [f"{root}/data", f"{root}/metadata"]
            selectors = (fs.FileSelector(each, allow_not_found=True, recursive=True) for each in folders)
            found = (each for selector in selectors for each in filesystem.get_file_info(selector) if each.is_file)
            own = [each for each in found if each.base_name.startswith("part-") or each.base_name.endswith(".avro")]
            before = _files_of_snapshots(table)
            # A snapshot is the current one from its own time to the time of the next snapshot.
            times = sorted((each.timestamp_ms, each.snapshot_id) for each in table.snapshots())
            # If the owner of the table has set an age, that age decides, and not our number.
            beyond = len(times) - SNAPSHOTS_MAX if exactly or not rule.keep_s else 0
            protected = {ref.snapshot_id for ref in table.metadata.refs.values()}
            for ref in () if exactly else table.metadata.refs.values():
                if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
                    line = ancestors_of(table.metadata.snapshot_by_id(ref.snapshot_id), table.metadata)
                    protected |= {each.snapshot_id for each in islice(line, rule.versions_min)}
            expired = [
                number
                for place, ((_, number), (end_ms, _)) in enumerate(pairwise(times))
                if number not in protected and (place < beyond or end_ms <= (now_s - keep_s) * 1000)
            ]
            if expired:
                table.maintenance.expire_snapshots().by_ids(expired).commit()
                self._sync(f"{_address_of(table)}/metadata", now_s)
            needed = _files_of_snapshots(self._open())
            # A file that no snapshot ever had can belong to a run that is still at work.
            orphans_s = now_s - max(keep_s, log.ORPHANS_S)
            old = (each for each in own if each.base_name in before or each.mtime.timestamp() <= orphans_s)
            gone = [each.path for each in old if each.base_name not in needed]
            for path in gone:
                filesystem.delete_file(path)
        return len(expired) + len(gone)

    def is_own(self) -> bool:
        return bool(self._open().properties.get("comment") == log.DESCRIPTION)

    def owners_rule(self) -> log.OwnersRule:
        metadata = self._open().metadata
        with iceberg_errors(f"the table {self.address} cannot be read"):
            said = {name: metadata.properties[name] for name in (KEPT, KEPT_MIN, GC) if name in metadata.properties}
            refs = metadata.refs.values()
            age_ms = max(int(said.get(KEPT, 0)), *(each.max_snapshot_age_ms or 0 for each in refs), 0)
            count = max(int(said.get(KEPT_MIN, 1)), *(each.min_snapshots_to_keep or 1 for each in refs), 1)
        if any(each.max_snapshot_age_ms or each.min_snapshots_to_keep for each in refs):
            said["the branches"] = f"{age_ms} ms, {count} snapshots"
        # Without garbage collection, another table may have the same files.
        keep_s = math.inf if said.get(GC, "true").lower() == "false" else age_ms / 1000
        return log.OwnersRule(keep_s, count, ", ".join(f"{name} = {value}" for name, value in said.items()))

    def versions_with(self, stream: str, key: bytes | None) -> list[str]:
        wanted = EqualTo("stream", stream) if key is None else And(EqualTo("stream", stream), EqualTo("key", key))
        table = self._open()

        def has_rows(snapshot: int) -> bool:
            rows = table.scan(wanted, selected_fields=("index",), snapshot_id=snapshot)
            return any(each.num_rows for each in rows.to_arrow_batch_reader())

        with iceberg_errors(f"the tags and branches of {self.address} cannot be read"):
            refs = ((name, ref) for name, ref in table.metadata.refs.items() if name != MAIN_BRANCH)
            return sorted(
                f"the {ref.snapshot_ref_type.value} {name}" for name, ref in refs if has_rows(ref.snapshot_id)
            )

    @contextmanager
    def _changing(self, table: Any) -> Iterator[Any]:
        # pyiceberg would repeat a commit with positions that another exporter has moved meanwhile.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        started_s = time.time()
        try:
            with table.transaction() as change:
                yield change
            self._sync(f"{_address_of(table)}/metadata", started_s)
        except (*UNSURE, exceptions.ValidationException, SQLAlchemyError) as error:
            raise log.CommitConflict(one_line(error)) from error

    def _open(self) -> Any:
        with iceberg_errors(f"the table {self.address} cannot be read"):
            return self._catalog.load_table(self._name)

    def _plan_files(self, scan: Any) -> list[Any]:
        """Returns the data files that a scan reads, with the delete files that name their removed rows."""
        with iceberg_errors(f"the manifests of {self.address} cannot be read"):
            return [*scan.plan_files()]

    def _open_catalog(self) -> Any:
        if self._choice is not None:
            name, given = self._choice.name, dict(self._choice.options)
        elif self.place.is_local:
            self.place.folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{self.place}/{CATALOG_FILE}?timeout={CATALOG_WAIT_S}"
            name, given = CATALOG, {"type": "sql", "uri": uri, "warehouse": f"file://{self.place}"}
        else:
            raise TableRefused(
                "an Iceberg table on a store needs a catalog: --catalog NAME, with its properties in pyiceberg's "
                "configuration or by --catalog-option uri=https://…"
            )
        with iceberg_errors("the catalog cannot be opened"):
            try:
                options = renamed(complete_options(self.place, self.options), OPTION_NAMES[self.place.scheme])
                connect = {"s3.connect-timeout": str(CONNECT_S)} if self.place.scheme == "s3" else {}
                return load_catalog(name, **{**options, **connect, **given})
            except (exceptions.NotInstalledError, ModuleNotFoundError) as error:
                raise ExtraMissing(f"the catalog {name} needs more of pyiceberg: {error}") from error

    def _read_choice(self) -> CatalogChoice | None:
        filesystem, root = open_filesystem(str(self.place), self.options)
        try:
            with filesystem.open_input_stream(f"{root}/{CHOICE}") as file:
                return CatalogChoice(**json.loads(file.read()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise TableRefused(f"{self.place}/{CHOICE} cannot be read: {one_line(error)}") from error


def _refuse_secrets(chosen: CatalogChoice) -> None:
    for option, value in chosen.options.items():
        variable = f"PYICEBERG_CATALOG__{chosen.name}__{option.replace('-', '_')}".upper()
        if any(part in option.lower() for part in SECRETS):
            raise TableRefused(
                f"--catalog-option {option}: a secret is not given as an option, which `ps` shows; set {variable}"
            )
        with suppress(ValueError):
            if urlsplit(value).password is not None:
                raise TableRefused(
                    f"--catalog-option {option}: its address has a password, which `ps` and the file {CHOICE} "
                    f"would show; set {variable} to the address"
                )


def _numbers(run: int, positions: Positions) -> dict[str, str]:
    text = json.dumps(log.positions_to_json(positions), ensure_ascii=False, separators=(",", ":"))
    return {POSITIONS_KEY: text, log.RUN_KEY: str(run)}


def _address_of(table: Any) -> str:
    return str(table.location()).rstrip("/")


def _bound(bounds: Mapping[int, bytes] | None, column: Any) -> Any:
    """Returns the bound of a column in a file; None if the manifest does not have it."""
    bound = (bounds or {}).get(column.field_id)
    return None if bound is None else int(from_bytes(column.field_type, bound))


def _properties_of_snapshots(table: Any) -> Iterator[Mapping[str, str]]:
    return (each.summary.additional_properties for each in table.snapshots() if each.summary is not None)


def _files_of_snapshots(table: Any) -> set[str]:
    """Returns the names of the manifest lists, manifests and data files of all snapshots."""
    found, manifests = set[str](), dict[str, Any]()
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        manifests |= {each.manifest_path: each for each in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        found |= {path, *(entry.data_file.file_path for entry in entries)}
    return {each.rpartition("/")[2] for each in found}


@contextmanager
def iceberg_errors(what: str) -> Iterator[None]:
    """Turns errors of `pyiceberg` and of the catalog into ExportErrors. `what` is the failed step."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise ExportError(f"{what}: {reason}") from error
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError) as error:
        raise TableRefused(f"{what}: {one_line(error)}") from error
    except (*UNSURE, ValueError) as error:
        raise ExportError(f"{what}: {one_line(error)}") from error
