"""A Delta table whose log records its export. `deltalake` writes the log, the tasks write the files; no jar is needed.

Positions are `txn` actions of the log. Checkpoints keep them, and DELETE, MERGE, OPTIMIZE, RESTORE and the cleaning of
the log do not touch them. The application `stream-node/STREAM/PARTITION/ERA/CREATED` has as its version the next
index to export, and as its time that of the last exported message. `stream-node` has the number of the latest run,
and `stream-node.forgotten/STREAM/SHA256` until when the messages of a key are forgotten, in microseconds.
Delta refuses one of two transactions that set the same application at the same time.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector

from ockam.files.durable_files import make_folder
from spark_export.tables import log, model
from spark_export.tables.address import FILE, StoreLocation, azure_names, complete_options, renamed
from spark_export.tables.columns import DATE, ROWS, fitting, without
from spark_export.tables.errors import EarlierVersion, ExportError, ExtraMissing, TableDamaged, TableRefused
from spark_export.tables.files import count_only, statistics
from spark_export.tables.filesystem import one_line, open_filesystem, store_errors
from stream_storage.failpoint import failpoint

try:
    from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction
except ModuleNotFoundError as error:
    raise ExtraMissing(f"the format delta needs the library `deltalake` ({error.name} is missing)") from error

RUN, FORGOTTEN = "stream-node", "stream-node.forgotten"
EARLIER = "stream-node-export-"
"""The beginning of the application ids of earlier versions, which kept the positions in a ledger beside the table."""
PARTITIONS = ("stream", "date")
SOURCES = {"stream": ("stream", ""), "partition": ("partition", ""), "era": ("era", ""), "date": ("timestamp", "day")}
"""The columns by which a table can be partitioned, each with the column and the unit of time from which it is made."""
REFUSED = {
    "delta.setTransactionRetentionDuration": "the table would forget what was exported; remove the property",
    "delta.columnMapping": "deltalake cannot write the files of a table whose columns have other names in the files",
    "delta.constraints": "an export does not check constraints of others; remove them, or export into another table",
}
"""The beginnings of the names of table properties with which an export cannot write into a table, and why."""
KEPT = "delta.deletedFileRetentionDuration"
"""The property with which the owner of a table says how long files of earlier versions are kept."""
KEPT_DEFAULT = "interval 7 days"
"""The value that Delta's specification gives to a table without the property."""
UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
OPTION_NAMES = {
    "s3": {
        **{"endpoint": "aws_endpoint_url", "region": "aws_region", "anonymous": "aws_skip_signature"},
        "virtual_hosted": "aws_virtual_hosted_style_request",
    },
    "gs": {"endpoint": "google_base_url"},
    "abfs": {"endpoint": "azure_storage_endpoint"},
    "hdfs": {},
}
"""The names that deltalake has for the options of each kind of store."""
VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(?:(\d{10})\.(\d{10})|[0-9a-f-]{36}))?\.(parquet|json)")
_COMMIT = re.compile(r"(\d{20})\.json")
_INTERVAL = re.compile(r"(\d+)\s+([a-z]+?)s?\b")


class DeltaLog(log.TableLog):
    """The Delta table of an export: its own table at PLACE/messages, or PLACE itself if a Delta table is there."""

    format = "delta"

    def __init__(self, place: StoreLocation, options: Mapping[str, str], *, whole: bool = False) -> None:
        """whole: whether a new table is at PLACE itself."""
        super().__init__(place, options)
        self._storage = _delta_options(place, complete_options(place, options))
        is_whole = whole or DeltaTable.is_deltatable(str(place), self._storage)
        self.address = str(place if is_whole else place / "messages")
        self._filesystem, self._root = open_filesystem(self.address, options)
        self._log = f"{self._root}/_delta_log"
        self._table: DeltaTable | None = None
        self._known_of, self._known = "", -1
        self._applications: dict[str, tuple[int, int]] = {}

    def exists(self) -> bool:
        with _delta_errors(f"the Delta table {self.address} cannot be read"):
            return bool(DeltaTable.is_deltatable(self.address, self._storage))

    def create(self, columns: pa.Schema) -> None:
        if self.exists():
            return
        if self.place.scheme == FILE:
            make_folder(Path(self.address))
        with _delta_errors(f"the Delta table {self.address} cannot be made"):
            DeltaTable.create(
                self.address,
                columns.append(DATE),
                mode="ignore",
                partition_by=list(PARTITIONS),
                name="messages",
                description=log.DESCRIPTION,
                storage_options=self._storage,
            )
        self._sync(f"{self.address}/_delta_log")

    def table_id(self) -> str:
        return str(self._open().metadata().id)

    def column_names(self) -> Sequence[str]:
        return [each.name for each in self._open().schema().fields]

    def load(self) -> model.TableState:
        table = self._table = self._open()
        for name in table.metadata().configuration:
            if reason := next((said for start, said in REFUSED.items() if name.startswith(start)), None):
                raise TableRefused(f"the table {self.address} has the property {name}: {reason}")
        positions, forgotten = {}, dict[str, dict[str, int]]()
        applications = self._load_applications(table)
        if RUN not in applications:
            # A mark of plain Parquet of an earlier version stands beside the table if a `migrate` ended early.
            with store_errors(self.address):
                has_mark = self._filesystem.get_file_info(f"{self._root}/{log.EARLIER_MARK}").is_file
            if has_mark or any(name.startswith(EARLIER) for name in applications):
                raise EarlierVersion(self.address)
        for name, (number, time_ms) in applications.items():
            match name.split("/"):
                case [kind, stream, *numbers] if kind == RUN and len(numbers) == 3:
                    of = model.Incarnation(unquote(stream), *map(int, numbers))
                    positions[of] = model.TablePosition(number, time_ms * 1000)
                case [kind, stream, digest] if kind == FORGOTTEN:
                    forgotten.setdefault(unquote(stream), {})[digest] = number
        run = applications.get(RUN, (0, 0))[0]
        return model.TableState(table.version(), run, positions, forgotten)

    def _shape(self, columns: pa.Schema) -> tuple[str, pa.Schema, Sequence[model.PartitionField]]:
        table = self._table or self._open()
        names = list(table.metadata().partition_columns)
        if unknown := [name for name in names if name not in SOURCES]:
            raise TableRefused(
                f"the table {self.address} is partitioned by {', '.join(unknown)}, which a message does not have; an "
                f"export writes into tables that are partitioned by {', '.join(SOURCES)}, or not at all"
            )
        schema = fitting(pa.schema(table.schema().to_arrow()), columns.append(DATE), self.address)
        return self.address, without(schema, names), [model.PartitionField(name, *SOURCES[name]) for name in names]

    def _commit(
        self, plan: model.FilesPlan, state: model.TableState, written: model.Written, ranges: Sequence[model.IndexRange]
    ) -> None:
        # Delta compares the application ids with those of the commits after the version that `load` has read.
        table = self._table
        assert table is not None
        assert table.version() == state.version
        run = state.run + 1
        applications = [Transaction(RUN, run, time.time_ns() // 1_000_000)]
        applications += [Transaction(_application(each.of), each.end, each.last_us // 1000) for each in ranges]
        known = {*plan.schema.names, *table.metadata().partition_columns}
        # A column of the table that the files lack has no minimum, so only rows are counted (see `statistics`).
        lacks = any(field.name not in known for field in table.schema().fields)
        files = [replace(each, stats=count_only(each.rows)) if lacks else each for each in written.files]
        self._transact(table, files, applications, log.said_of(run, ranges, plan))

    def has_old_run(self, old_id: str, run: int) -> bool:
        return self.exists() and (self._open().transaction_version(f"{EARLIER}{old_id}") or 0) >= run

    def adopt(self, old_id: str, runs: log.OldRuns, positions: model.Positions) -> None:
        if self.exists() and RUN in self._load_applications(self._open()):
            return
        files = []
        if self.address == str(self.place):
            # The table is made now, and gets the files of a table of plain Parquet.
            for run, each in ((run, each) for run, (_, found) in runs.items() for each in found):
                path = f"data/run={run:06d}/{each.path}"
                with self._filesystem.open_input_file(f"{self._root}/{path}") as opened:
                    files.append(replace(each, path=path, stats=statistics(pq.ParquetFile(opened).metadata)))
            self.create(ROWS)
        applications = [Transaction(_application(of), position.end) for of, position in positions.items()]
        applications.append(Transaction(RUN, max(runs, default=0)))
        self._transact(self._open(), files, applications, {log.UPKEEP_KEY: "migrate"})

    def commits(self, since: int = -1) -> list[model.Commit | str]:
        table = self._table or self._open()
        with _delta_errors(f"the log of {self.address} cannot be read"):
            found = table.history(table.version() - since) if table.version() > since else []
            return [log.commit_of(each, str(each.get("operation", "?"))) for each in found]

    def list_files(self) -> list[log.TableFile]:
        table = self._open()
        has_removed_rows = "deletionVectors" in (table.protocol().reader_features or ())
        found = []
        for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            # The values of partitions are as JSON has them: a date is a text.
            values = {
                name.removeprefix("partition."): value if isinstance(value, int | None) else str(value)
                for name, value in each.items()
                if name.startswith("partition.")
            }
            address, indexes = f"{self.address}/{unquote(each['path'])}", (each.get("min.index"), each.get("max.index"))
            sizes = each["size_bytes"], each["num_records"]
            found.append(log.TableFile(address, *sizes, values, None if None in indexes else indexes, has_removed_rows))
        return found

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        table = self._open()
        there = {each.name for each in table.schema().fields}
        names = ", ".join(f'"{name}"' for name in columns if name in there)
        try:
            for batch in QueryBuilder().register("t", table).execute(f"SELECT {names} FROM t"):
                # Arrow has no kernels for views of texts.
                rows = pa.record_batch(batch)
                plain = [pa.field(each.name, VIEWS.get(each.type, each.type)) for each in rows.schema]
                yield rows.cast(pa.schema(plain))
        except Exception as error:
            # deltalake has no class of its own for the errors of files.
            raise TableDamaged(f"the table {self.address} cannot be read: {one_line(error)}") from error

    def _rewrite(self, files_min: int, record: log.Forgotten | None) -> int:
        if record is not None:
            return self._erase(*record)
        table, files = self._open(), self.list_files()
        streams = {stream for each in files if (stream := each.partition.get("stream")) is not None}
        long = sorted(filter(self._is_too_long, streams))
        small = [each.partition for each in files if each.file_bytes < log.SMALL_BYTES]
        counts = Counter(str(each) for each in small if each.get("stream") not in long)
        if max(counts.values(), default=0) < max(1, files_min):
            return 0
        filters = [("stream", "not in", long)] if long else None
        failpoint("rewrite_written")
        with _delta_errors(f"the table {self.address} cannot be compacted"):
            started_s = time.time()
            metrics = table.optimize.compact(filters, commit_properties=_upkeep("compact"))
            self._sync(self.address, started_s)
        failpoint("rewritten")
        return int(metrics["numFilesRemoved"])

    def expire(self, keep_s: float, *, exactly: bool = False) -> int:
        started_s = time.time()
        if not exactly:
            keep_s = max(keep_s, self.owners_rule().keep_s)
        with _delta_errors(f"old files of {self.address} cannot be removed"):
            removed = self._open().vacuum(
                # deltalake takes whole hours. Rounded down, half an hour would remove files at once.
                retention_hours=math.ceil(keep_s / 3600),
                dry_run=False,
                enforce_retention_duration=False,
                full=keep_s >= log.ORPHANS_S,
                commit_properties=_upkeep("expire"),
            )
        self._sync(f"{self.address}/_delta_log", started_s)
        return len(removed)

    def is_own(self) -> bool:
        table = self._open()
        # Tables of earlier versions have no description, but the log has their runs.
        return table.metadata().description == log.DESCRIPTION or any(
            name.startswith(EARLIER) for name in self._load_applications(table)
        )

    def owners_rule(self) -> log.OwnersRule:
        said = self._open().metadata().configuration.get(KEPT)
        if said is None and self.is_own():
            return log.OwnersRule()
        text = said or KEPT_DEFAULT
        parts = [(float(count), unit) for count, unit in _INTERVAL.findall(text.lower())]
        if not parts or any(unit not in UNITS_S for _, unit in parts):
            raise ExportError(f"the table {self.address} has {KEPT} = {text}, which is no interval; nothing is removed")
        return log.OwnersRule(sum(count * UNITS_S[unit] for count, unit in parts), said=f"{KEPT} = {text}")

    def _erase(self, stream: str, key: bytes | None, until_us: int) -> int:
        state, table = self.load(), self._table
        assert table is not None
        partitions = table.metadata().partition_columns
        if key is not None and "stream" in partitions and self._is_too_long(stream):
            raise TableRefused(
                f"the name of the stream {stream[:40]!r}… is too long for a folder, into which deltalake would write "
                "the rows of other keys; only the whole stream can be forgotten"
            )
        application = f"{FORGOTTEN}/{quote(stream, safe='')}/{model.key_digest(key)}"
        # The record comes first. It sets the number of the latest run, too, so that the commit of a run that does not
        # know the record fails.
        numbers = [Transaction(RUN, state.run), Transaction(application, until_us)]
        self._transact(table, [], numbers, {log.UPKEEP_KEY: application})
        table, text = self._open(), stream.replace("'", "''")
        until = f"arrow_cast({until_us}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        predicate = f"stream = '{text}' AND timestamp <= {until}"
        predicate += f" AND key = X'{key.hex()}'" if key is not None else ""
        failpoint("rewrite_written")
        with _delta_errors(f"rows of {self.address} could not be deleted"):
            started_s = time.time()
            metrics = table.delete(predicate, commit_properties=_upkeep("forget"))
            self._sync(self.address, started_s)
        failpoint("rewritten")
        return int(metrics["num_deleted_rows"] or 0)

    def _is_too_long(self, stream: str) -> bool:
        """Returns whether rows of a stream cannot be written again: deltalake's folder would have too long a name."""
        return self.place.scheme == FILE and len(f"stream={quote(stream, safe='')}") > model.NAME_BYTES_MAX

    def _transact(
        self,
        table: DeltaTable,
        files: Sequence[model.DataFile],
        applications: list[Transaction],
        said: Mapping[str, str],
    ) -> None:
        started_s = time.time()
        try:
            table.create_write_transaction(
                [
                    AddAction(each.path, each.file_bytes, dict(each.partition), int(started_s * 1000), True, each.stats)
                    for each in files
                ],
                mode="append",
                schema=table.schema(),
                partition_by=list(table.metadata().partition_columns),
                commit_properties=CommitProperties(app_transactions=applications, custom_metadata=dict(said)),
            )
        except (DeltaError, OSError) as error:
            raise log.CommitConflict(one_line(error)) from error
        self._sync(f"{self.address}/_delta_log", started_s)

    def _open(self) -> DeltaTable:
        with _delta_errors(f"the Delta table {self.address} cannot be read"):
            return DeltaTable(self.address, storage_options=self._storage)

    def _load_applications(self, table: DeltaTable) -> Mapping[str, tuple[int, int]]:
        """Returns the version and the time (milliseconds) of each application id. A repeated call reads later commits.

        deltalake only looks up one id, which takes 20 ms, and an export can have thousands.
        """
        version, table_id = table.version(), str(table.metadata().id)
        if table_id != self._known_of:
            # The folder was removed, and another table made in it.
            self._known_of, self._known, self._applications = table_id, -1, {}
        with store_errors(self._log):
            infos = self._filesystem.get_file_info(FileSelector(self._log, allow_not_found=True))
            names = [each.base_name for each in infos]
            commits = {int(found[1]): name for name in names if (found := _COMMIT.fullmatch(name))}
            if self._known > version or any(number not in commits for number in range(self._known + 1, version + 1)):
                self._known, self._applications = self._read_checkpoint(names, version)
            for number in range(self._known + 1, version + 1):
                if number not in commits:
                    raise ExportError(f"the log of {self.address} lacks version {number}, which no checkpoint has")
                self._applications |= self._read_commit(commits[number])
            self._known = version
        return self._applications

    def _read_checkpoint(self, names: Sequence[str], version: int) -> tuple[int, dict[str, tuple[int, int]]]:
        """Returns the version of the newest complete checkpoint and its application ids; -1 without a checkpoint."""
        # The files of each checkpoint, by its version and the number of its parts.
        files: dict[tuple[int, int], list[str]] = {(-1, 0): []}
        for found in filter(None, map(_CHECKPOINT.fullmatch, names)):
            if int(found[1]) <= version:
                files.setdefault((int(found[1]), int(found[3] or 1)), []).append(found[0])
        newest = max(each for each, parts in files.items() if len(parts) >= each[1])
        applications: dict[str, tuple[int, int]] = {}
        for name in files[newest]:
            applications |= self._read_commit(name)
        return newest[0], applications

    def _read_commit(self, name: str) -> dict[str, tuple[int, int]]:
        """Returns the application ids of a commit, or of a part of a checkpoint."""
        with self._filesystem.open_input_file(f"{self._log}/{name}") as file:
            if name.endswith(".parquet"):
                actions = pq.read_table(file, columns=["txn"]).column("txn").to_pylist()
            else:
                actions = [json.loads(line).get("txn") for line in file.read().splitlines() if b'"txn"' in line]
        found = (each for each in actions if each is not None and each["appId"] is not None)
        return {each["appId"]: (each["version"], each.get("lastUpdated") or 0) for each in found}


def _upkeep(kind: str) -> CommitProperties:
    """Returns the properties that mark a commit in the log as the exporter's own."""
    return CommitProperties(custom_metadata={log.UPKEEP_KEY: kind})


def _application(of: model.Incarnation) -> str:
    return f"{RUN}/{quote(of.stream, safe='')}/{of.partition}/{of.era}/{of.created_us}"


def _delta_options(place: StoreLocation, options: Mapping[str, str]) -> dict[str, str] | None:
    if place.scheme == FILE:
        return None
    found = {"timeout": f"{options['timeout_s']}s", "max_retries": options["tries"]}
    found |= {"allow_http": "true"} if options.get("endpoint", "").startswith("http://") else {}
    found |= {"azure_storage_account_name": azure_names(place, options)[0]} if place.scheme == "abfs" else {}
    if place.scheme == "s3":
        # Otherwise deltalake takes them from the environment, where the writer of the files does not look for them.
        found |= {"aws_skip_signature": "false", "aws_virtual_hosted_style_request": "false"}
    return found | renamed(options, OPTION_NAMES[place.scheme])


@contextmanager
def _delta_errors(what: str) -> Iterator[None]:
    """Turns errors of deltalake into ExportErrors. `what` is the beginning of the message."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise ExportError(f"{what}: {one_line(error)}") from error
