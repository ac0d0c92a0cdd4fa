"""A folder of plain Parquet files as a table with a log: each run is one folder, which one rename puts into the table.

    FOLDER/messages -> generations/000001                   what readers open
    FOLDER/generations/000001/run=000007/stream=orders/date=2026-11-21/part-….parquet
    FOLDER/generations/000001/run=000007/_run.json          the run's files and ranges, and the positions after it
    FOLDER/staging/…                                        what no reader sees
    FOLDER/_export.json                                     the id of the table

A compaction makes another generation, whose only run has all files, and one rename turns the link `messages` to it.
Readers of Parquet ignore names that begin with `_`. An object store has no such rename, so it has no such tables.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from ockam.files.durable_files import make_folder, rename_durably, sync, write_durably
from spark_export.tables import log, model
from spark_export.tables.address import StoreLocation
from spark_export.tables.columns import ROWS, without
from spark_export.tables.errors import TableDamaged, TableRefused
from spark_export.tables.filesystem import locked, take_lock
from stream_storage.failpoint import failpoint

TABLE, GENERATIONS, STAGING, IDENTITY, RUN_FILE = "messages", "generations", "staging", "_export.json", "_run.json"
FileOfRun: TypeAlias = tuple[Path, model.DataFile]
"""The folder of a run, and one of its files."""
PARTITION_BY = (model.PartitionField("stream", "stream"), model.PartitionField("date", "timestamp", "day"))


class ParquetFolderLog(log.TableLog):
    format = "parquet"

    def __init__(self, place: StoreLocation, options: Mapping[str, str]) -> None:
        super().__init__(place, options)
        if not place.is_local:
            raise TableRefused(
                f"{place}: plain Parquet files are exported into folders only, because a store cannot publish a run by "
                "one rename; on a store, export with --format delta or --format iceberg"
            )
        self.folder = place.folder
        self.link = self.folder / TABLE
        self.address = str(self.link)
        self._staged: dict[str, int] = {}

    def exists(self) -> bool:
        # The folder `generations` decides: tables of other formats can have a folder of the link's name.
        generations = self.folder / GENERATIONS
        return generations.is_dir() and (os.path.lexists(self.link) or any(generations.glob("*/run=*")))

    def create(self, columns: pa.Schema) -> None:
        for folder in (self.folder, self.folder / STAGING, self.folder / GENERATIONS):
            make_folder(folder)
        with self._locked():
            if not (self.folder / IDENTITY).exists():
                write_durably(
                    self.folder / IDENTITY, json.dumps({"format": "parquet", "id": str(uuid.uuid4())}).encode()
                )
            if not self.exists():
                make_folder(self.folder / GENERATIONS / f"{1:06d}")
                self._turn(1)
        self._sweep()
        self._give()

    def table_id(self) -> str:
        try:
            return str(json.loads((self.folder / IDENTITY).read_bytes())["id"])
        except FileNotFoundError as error:
            raise TableRefused(
                f"{self.folder} has no {IDENTITY}: it is no export, or `stream-node export migrate` it"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise TableDamaged(f"{self.folder / IDENTITY} is damaged: {error}") from error

    def column_names(self) -> Sequence[str]:
        import pyarrow.parquet as pq

        for folder in reversed(self._runs(self._generation())):
            for each in _run_file(folder)["files"][:1]:
                return list(pq.read_schema(folder / each.path).names)
        return []

    def refusal_of(self, stream: str) -> str | None:
        instead = "leave it out by --stream or --pattern, or export with --format delta or iceberg"
        size_bytes = len(model.hive_folder({"stream": stream}).encode()) - 1
        if size_bytes > model.NAME_BYTES_MAX:
            return (
                f"the name of the stream {stream[:40]!r}… makes a folder's name of {size_bytes} bytes, and file "
                f"systems take {model.NAME_BYTES_MAX}: {instead}"
            )
        if stream == model.NO_NAME:
            return f"readers of folders take the name of the stream {stream!r} for NULL: {instead}"
        return None

    def load(self) -> model.TableState:
        return _state_of(self._runs(self._generation()))

    def _shape(self, columns: pa.Schema) -> tuple[str, pa.Schema, Sequence[model.PartitionField]]:
        staged = self.folder / STAGING / uuid.uuid4().hex
        with self._locked():
            make_folder(staged)
            # The lock shows that the run is alive. Without it, another exporter removes the folder.
            self._staged[str(staged)] = take_lock(staged / "lock")
        return str(staged), without(columns, [each.name for each in PARTITION_BY]), PARTITION_BY

    def abandon(self, plan: model.FilesPlan, files: Sequence[model.DataFile] = ()) -> None:
        shutil.rmtree(plan.root, ignore_errors=True)
        if (held := self._staged.pop(plan.root, None)) is not None:
            os.close(held)

    def _commit(
        self, plan: model.FilesPlan, state: model.TableState, written: model.Written, ranges: Sequence[model.IndexRange]
    ) -> None:
        tree = Path(plan.root) / "tree"
        for target in (tree / each.path for each in written.files):
            # After a conflict, the files of the first attempt are there already.
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                (Path(plan.root) / target.relative_to(tree)).rename(target)
        after = state.after(ranges)
        self._write_run(tree, written.files, ranges, after, plan_id=plan.plan_id)
        with self._locked():
            generation = self._generation()
            if self.load() != state:
                raise log.CommitConflict("another exporter has published a run meanwhile")
            rename_durably(tree, generation / f"run={after.run:06d}")
        self.abandon(plan)

    def has_old_run(self, old_id: str, run: int) -> bool:
        return (self._generation() / f"run={run:06d}").is_dir()

    def adopt(self, old_id: str, runs: log.OldRuns, positions: model.Positions) -> None:
        if not (self.folder / IDENTITY).exists():
            write_durably(self.folder / IDENTITY, json.dumps({"format": "parquet", "id": old_id}).encode())
        latest = max(runs, default=0)
        # The latest run comes last: its positions are those of the table.
        for run in sorted(runs):
            after = model.TableState(run, run, positions if run == latest else {})
            folder = self._generation() / f"run={run:06d}"
            ranges, files = runs[run]
            # A run whose files were all merged into those of later runs has no folder any more.
            time_us = folder.stat().st_mtime_ns // 1000 if folder.is_dir() else None
            self._write_run(folder, files, ranges, after, time_us)

    def commits(self, since: int = -1) -> list[model.Commit | str]:
        later = [each for each in reversed(self._runs(self._generation())) if int(each.name[4:]) > since]
        return [model.Commit(each["run"], each["ranges"], each.get("plan", "")) for each in map(_run_file, later)]

    def list_files(self) -> list[log.TableFile]:
        found = []
        for folder in self._runs(self._generation()):
            run = _run_file(folder)
            indexes: dict[str, tuple[int, int]] = {}
            for each in run["ranges"]:
                first, last = indexes.get(each.of.stream, (each.begin, each.begin))
                indexes[each.of.stream] = min(first, each.begin), max(last, each.end - 1)
            for file in run["files"]:
                path, bounds = str(folder / file.path), indexes.get(file.stream)
                found.append(log.TableFile(path, file.file_bytes, file.rows, file.partition, bounds))
        return found

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # A reader of Parquet takes every file that it finds, also one that somebody has copied into the table.
        for folder in self._runs(self._generation()):
            known = {each.path: each.stream for each in _run_file(folder)["files"]}
            there = {str(each.relative_to(folder)) for each in folder.glob("stream=*/**/*.parquet")}
            for name in sorted(there | known.keys()):
                stream = known.get(name, unquote(name.partition("/")[0].removeprefix("stream=")))
                yield from _read(folder / name, stream, columns)

    def expire(self, keep_s: float, *, exactly: bool = False) -> int:
        """Removes generations that the link left at least `keep_s` seconds ago, and the files of killed runs."""
        removed = self._sweep()
        # Without the lock, a generation to which another process is just turning the link would seem to be an old one.
        with self._locked():
            current = self._generation()
            for folder in self._generations():
                # The folder of a generation is touched when the link leaves it.
                if folder != current and folder.stat().st_mtime <= time.time() - keep_s:
                    removed += sum(1 for _ in folder.rglob("*.parquet"))
                    shutil.rmtree(folder)
        return removed

    def _rewrite(self, files_min: int, record: log.Forgotten | None) -> int:
        """Makes another generation, and turns the link to it."""
        generation = self._generation()
        folders = self._runs(generation)
        runs = {folder: _run_file(folder) for folder in folders}
        state = _state_of(folders) if record is None else _state_of(folders).forget(*record)
        files = [(folder, each) for folder, run in runs.items() for each in run["files"]]
        groups: dict[tuple[str, int, str], list[FileOfRun]] = defaultdict(list)
        for folder, each in files:
            if each.file_bytes < log.SMALL_BYTES if record is None else each.stream == record[0]:
                groups[each.stream, each.era, each.partition["date"]].append((folder, each))
        merges = [group for group in groups.values() if len(group) >= files_min]
        if not merges and record is None:
            return 0
        from spark_export.tables.files import columns_of, least_place, rewrite_rows

        merged = {folder / each.path: each for group in merges for folder, each in group}
        # Files of earlier versions lack the column `era`.
        plan = self.files_plan(state, columns_of(merged, pa.schema([ROWS.field("era")])))
        tree = Path(plan.root) / "generation" / f"run={state.run:06d}"
        made: list[model.DataFile] = []
        try:
            for group in merges:
                # The tasks of a run report their files in any order.
                ordered = sorted(group, key=lambda one: least_place(one[0] / one[1].path))
                batches = (_read(folder / each.path, each.stream, plan.schema.names) for folder, each in ordered)
                made += rewrite_rows(replace(plan, root=str(tree)), chain.from_iterable(batches))[1]
            gone = sum(each.rows for each in merged.values()) - sum(each.rows for each in made)
            for folder, each in files:
                if folder / each.path in merged:
                    continue
                target = tree / each.path
                if target.exists():
                    # Earlier versions gave the files of each run the same names.
                    target = target.with_name(f"{folder.name.removeprefix('run=')}-{target.name}")
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(folder / each.path, target)
                made.append(replace(each, path=str(target.relative_to(tree))))
            self._write_run(tree, made, model.join(part for run in runs.values() for part in run["ranges"]), state)
            with self._locked():
                if self._generation() != generation:
                    raise log.CommitConflict("another program has compacted the table meanwhile")
                later = [folder for folder in self._runs(generation) if folder not in folders]
                if later and record is not None:
                    raise log.CommitConflict("another exporter has published a run meanwhile")
                for folder in later:
                    shutil.copytree(folder, tree.parent / folder.name, copy_function=os.link)
                # A killed compaction can have left a generation to which the link never led.
                number = max(int(each.name) for each in self._generations()) + 1
                # The new generation must have the name of its run before the link leads to it.
                sync(tree.parent)
                rename_durably(tree.parent, self.folder / GENERATIONS / f"{number:06d}")
                failpoint("rewrite_written")
                self._turn(number)
                os.utime(generation)
            failpoint("rewritten")
        finally:
            self.abandon(plan)
        return len(merged) if record is None else gone

    def _write_run(
        self,
        tree: Path,
        files: Sequence[model.DataFile],
        ranges: Sequence[model.IndexRange],
        after: model.TableState,
        time_us: int | None = None,
        plan_id: str = "",
    ) -> None:
        tree.mkdir(parents=True, exist_ok=True)
        content = {
            "run": after.run,
            "plan": plan_id,
            "time_us": time.time_ns() // 1000 if time_us is None else time_us,
            "files": [{name: value for name, value in asdict(each).items() if name != "stats"} for each in files],
            "ranges": log.ranges_to_rows(ranges),
            "positions": log.positions_to_json(after.positions),
            "forgotten": after.forgotten,
        }
        write_durably(tree / RUN_FILE, json.dumps(content, ensure_ascii=False).encode())
        for root, _, _ in os.walk(tree):
            sync(Path(root))

    def _generation(self) -> Path:
        """Returns the folder to which the link leads. Raises TableRefused if the link is lost or leads elsewhere."""
        try:
            found = self.folder / GENERATIONS / Path(os.readlink(self.link)).name
        except OSError as error:
            # A copy that follows links makes a folder of the link.
            said = "is not a link" if os.path.lexists(self.link) else "is missing"
            newest = max((each.name for each in self._generations()), default="")
            raise TableRefused(
                f"{self.link} {said}: rename what is there, and `ln -s {GENERATIONS}/{newest} {self.link}`"
            ) from error
        if os.readlink(self.link) != f"{GENERATIONS}/{found.name}" or not found.is_dir():
            raise TableRefused(f"{self.link} leads to {os.readlink(self.link)}, which is no generation of this table")
        return found

    def _generations(self) -> list[Path]:
        return sorted(each for each in (self.folder / GENERATIONS).iterdir() if each.name.isdigit() and each.is_dir())

    def _runs(self, generation: Path) -> list[Path]:
        found = [each for each in generation.glob("run=*") if each.is_dir()]
        if strange := [each for each in found if not each.name[4:].isdecimal()]:
            raise TableRefused(f"{strange[0]} is no run of the table, but readers read its files, too: move it away")
        # By number: the millionth run has one digit more than those before it.
        return sorted(found, key=lambda each: int(each.name[4:]))

    def _turn(self, number: int) -> None:
        new = self.folder / f".{TABLE}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(f"{GENERATIONS}/{number:06d}")
        rename_durably(new, self.link)

    def _sweep(self) -> int:
        """Removes the staging folders of runs that no longer live. Returns the number of their data files."""
        removed = 0
        with self._locked():
            for folder in (self.folder / STAGING).iterdir():
                try:
                    os.close(take_lock(folder / "lock", os.O_RDWR))
                except BlockingIOError:
                    continue
                except (FileNotFoundError, NotADirectoryError):
                    # Another program's file, such as a file manager's, is no folder and stays.
                    pass
                removed += sum(1 for _ in folder.rglob("*.parquet"))
                shutil.rmtree(folder, ignore_errors=True)
        return removed

    def _locked(self) -> AbstractContextManager[None]:
        # One process at a time publishes.
        return locked(self.folder / "exporter.lock")


def _read(path: Path, stream: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    # A run without new messages does not load the modules that read and write Parquet.
    from spark_export.tables.files import read_file

    for batch in read_file(fs.LocalFileSystem(), str(path), columns):
        yield batch.append_column("stream", pa.repeat(pa.scalar(stream), batch.num_rows))


def _state_of(folders: Sequence[Path]) -> model.TableState:
    """Returns the state after the last of these runs."""
    if not folders:
        return model.TableState(0)
    run = _run_file(folders[-1])
    return model.TableState(run["run"], run["run"], log.positions_from_json(run["positions"]), run["forgotten"])


def _run_file(folder: Path) -> Any:
    """Returns the JSON object of a run, in which the files are DataFiles and the ranges IndexRanges."""
    try:
        run = json.loads((folder / RUN_FILE).read_bytes())
    except FileNotFoundError as error:
        raise TableRefused(
            f"{folder} lacks {RUN_FILE}: an earlier version wrote it, and `stream-node export migrate` takes it over"
        ) from error
    except ValueError as error:
        raise TableDamaged(f"{folder / RUN_FILE} cannot be read: {error}") from error
    files = [model.DataFile(**each) for each in run["files"]]
    return run | {"files": files, "ranges": log.ranges_from_rows(run["ranges"])}
