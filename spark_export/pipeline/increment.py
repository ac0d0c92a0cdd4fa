"""Updates the tables of a pipeline from an export.

A run reads the new messages in steps of limited size, and publishes a version of the tables after each step
(`versions`). A rebuild reads all messages again and publishes one version. Each version also contains the state for the
next run: which messages were read, and the messages of incomplete blocks. The rows of a version therefore do not depend
on the number of runs and steps that read the messages.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ockam.files.durable_files import make_folder, write_durably
from ockam.files.parsing import ParseError, parse_json
from spark_export.exporter.errors import ExportError
from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.tables.layout import ExportLock
from spark_export.pipeline.tables import block_tables, cardinal_tables, message_tables
from spark_export.pipeline.tables.block_tables import BLOCKS, ITEMS, BlockTables
from spark_export.pipeline.tables.cardinal_tables import UPDATES, CardinalTables
from spark_export.pipeline.tables.export_identity import read_export_id
from spark_export.pipeline.tables.known_blocks import BATCHES
from spark_export.pipeline.tables.message_tables import MESSAGES, MessageTables
from spark_export.pipeline.tables.new_messages import ExportFile, ReadFiles, list_new, take_file
from spark_export.pipeline.topics import Topics
from spark_export.pipeline.versions import KEEP_S, STATE, Version, Versions

STATE_FILE: Final = f"{STATE}/state.json"
STATE_FORMAT: Final = 2
STEP_BYTES: Final = 256 * 1024 * 1024
"""The memory for the rows of one step, in bytes. A file that needs more is read in a step of its own."""
SMALL_BYTES: Final = 8 * 1024 * 1024
SMALL_FILES_MAX: Final = 32
"""The number of files smaller than `SMALL_BYTES` in a table above which a step merges them."""
MERGED: Final = ((MESSAGES,), (BLOCKS, ITEMS), (BATCHES, UPDATES))
"""The tables whose small files are merged, in groups whose files of the same name contain the same blocks."""


@dataclass(frozen=True)
class Settings:
    """The settings of a pipeline.

    topics: the streams that contain Cardinal Streams; None if no tables of Cardinal Streams are to be built.
    starts: for each chain, by its name, the hash of a block on the canonical chain (see `canon`); a chain without a
        known hash is left out.
    step_bytes: the memory for the rows of one step, in bytes.
    keep_s: how long a replaced version is kept for its readers, in seconds.
    """

    topics: Topics | None = None
    starts: Mapping[str, bytes] = field(default_factory=dict)
    step_bytes: int = STEP_BYTES
    keep_s: float = KEEP_S


@dataclass(frozen=True)
class Report:
    """The result of a run.

    rows: the number of new messages. steps: the number of published versions. rebuilt: whether all tables were built
        again.
    notes: a line for each setting that has had no effect yet.
    """

    folder: Path
    rows: int
    steps: int
    rebuilt: bool
    notes: tuple[str, ...] = ()


class PipelineMismatch(ExportError):
    """The tables in the output folder cannot be updated.

    They were built from another export, with other settings, or by another version of this program.
    """


def run_pipeline(export: Path, out: Path, settings: Settings, *, rebuild: bool = False) -> Report:
    """Updates the tables with the new messages of an export. If there are no tables yet, builds all tables.

    Raises ExportInUse if another run is active in the output folder, PipelineMismatch if the settings are not those of
    the last run, and other ExportErrors. A rebuild can have other settings.
    """
    make_folder(out.absolute())
    export_id = read_export_id(export)
    with ExportLock(out.absolute()):
        versions = Versions(out, keep_s=settings.keep_s)
        versions.recover()
        base = versions.latest()
        dumped = None if rebuild or base is None else load_state(base)
        if dumped is None:
            return _rebuild(export, export_id, versions, settings)
        _check(dumped, settings, export_id, out)
        taken, rows, steps = ReadFiles.load(dumped["taken"]), 0, 0
        notes: list[str] = dumped.get("notes", [])
        for files in _steps(_list_new(export, taken), settings.step_bytes):
            version = versions.begin(versions.latest())
            step = _Step(version, versions.latest(), settings)
            new = step.take(files, taken)
            notes = step.finish(taken)
            _save_state(version, taken, settings, export_id, notes)
            versions.publish(version)
            rows, steps = rows + new, steps + 1
        folder = versions.latest()
        assert folder is not None
        return Report(folder, rows, steps, rebuilt=False, notes=tuple(notes))


def _rebuild(export: Path, export_id: str | None, versions: Versions, settings: Settings) -> Report:
    version, taken = versions.begin(None), ReadFiles()
    step = _Step(version, None, settings)
    rows = sum(step.take(files, taken) for files in _steps(_list_new(export, taken), settings.step_bytes))
    notes = step.finish(taken)
    _save_state(version, taken, settings, export_id, notes)
    versions.publish(version)
    return Report(version.folder, rows, 1, rebuilt=True, notes=tuple(notes))


class _Step:
    """A step of a run, which builds one version of the tables. `state` is the folder of the previous version."""

    def __init__(self, version: Version, state: Path | None, settings: Settings) -> None:
        schemas = message_tables.SCHEMAS | block_tables.SCHEMAS
        version.define(schemas if settings.topics is None else schemas | cardinal_tables.SCHEMAS)
        self._version = version
        self._messages = MessageTables(version)
        self._blocks = BlockTables(version)
        self._blocks.load(state)
        self._cardinal = None
        if settings.topics is not None:
            self._cardinal = CardinalTables(version, settings.topics, settings.starts)
            self._cardinal.load(state)

    def take(self, files: Iterable[ExportFile], taken: ReadFiles) -> int:
        """Adds the new messages in these files to the tables, and to `taken`. Returns their number."""
        count = 0
        parts: list[pa.Table] = []
        for file in files:
            rows = take_file(file, taken)
            if not rows.num_rows:
                continue
            count += rows.num_rows
            parts.append(self._messages.prepare(rows))
            self._messages.touch(self._blocks.add(rows))
            if self._cardinal is not None:
                self._cardinal.add(rows)
        self._messages.write(parts)
        self._blocks.flush()
        if self._cardinal is not None:
            self._cardinal.flush()
        failpoint("pipeline_taken")
        return count

    def finish(self, taken: ReadFiles) -> list[str]:
        """Completes all tables, so that the version can be published. Returns the `notes` of a `Report`."""
        self._blocks.finish()
        notes: list[str] = []
        if self._cardinal is not None:
            self._cardinal.finish()
            notes = self._cardinal.find_notes()
        self._messages.finish(taken, BLOCKS)
        for tables in MERGED:
            merge_small(self._version, tables)
        return notes


def merge_small(version: Version, tables: tuple[str, ...]) -> int:
    """Merges the small files of a group of tables, if there are many. Returns their number in each table.

    A file is small if the files with its name are small in all tables of the group. Merging changes no row.
    """
    sizes: dict[str, int] = defaultdict(int)
    for table in tables:
        for path in version.files(table, "part"):
            sizes[path.name] = max(sizes[path.name], path.stat().st_size)
    small = sorted(name for name, size in sizes.items() if size < SMALL_BYTES)
    if len(small) <= SMALL_FILES_MAX:
        return 0
    new = version.next_name("part")
    for table in tables:
        paths = [version.folder / table / name for name in small]
        version.write(table, pa.concat_tables(pq.ParquetFile(path).read() for path in paths), name=new)
        for path in paths:
            path.unlink()
    return len(small)


def load_state(folder: Path) -> Any:
    """Returns the state that the last run left, or None for tables of an earlier version. Raises PipelineMismatch."""
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        dumped = parse_json(path.read_bytes())
    except ParseError as error:
        raise PipelineMismatch(f"{path} is damaged: {error}; build the tables anew with --rebuild") from error
    if not isinstance(dumped, dict) or dumped.get("format") != STATE_FORMAT:
        raise PipelineMismatch(f"{folder} is of another version of this program: build it anew with --rebuild")
    return dumped


def _save_state(
    version: Version, taken: ReadFiles, settings: Settings, export_id: str | None, notes: Sequence[str]
) -> None:
    path = version.folder / STATE_FILE
    path.parent.mkdir(exist_ok=True)
    dumped = {
        "format": STATE_FORMAT,
        "export": export_id,
        "settings": _named(settings),
        "taken": taken.dump(),
        "notes": list(notes),
    }
    write_durably(path, json.dumps(dumped).encode())


def _named(settings: Settings) -> dict[str, str | None]:
    return {
        "cardinal": None if settings.topics is None else settings.topics.pattern,
        "start": " ".join(f"{chain}={hash_.hex()}" for chain, hash_ in sorted(settings.starts.items())) or None,
    }


def _check(dumped: Any, settings: Settings, export_id: str | None, out: Path) -> None:
    """Raises PipelineMismatch if the tables were built from another export or with other settings."""
    if export_id != dumped["export"]:
        raise PipelineMismatch(
            f"the tables in {out} were built from the export {dumped['export']}, and this is the export {export_id}: "
            "choose another folder for its tables, or build the tables anew with --rebuild"
        )
    before, now = dumped["settings"], _named(settings)
    for name, value in now.items():
        if before[name] != value:
            raise PipelineMismatch(
                f"the tables in {out} were built with {name}={before[name]}, and now {name}={value} is given: "
                "give the same value, or build the tables anew with --rebuild"
            )


def _list_new(export: Path, taken: ReadFiles) -> list[ExportFile]:
    try:
        return list_new(export, taken)
    except FileNotFoundError as error:
        raise ExportError(str(error)) from error


def _steps(files: list[ExportFile], bytes_max: int) -> Iterator[list[ExportFile]]:
    """Groups files into steps of at most `bytes_max` bytes of memory. A file that needs more is a step by itself."""
    step: list[ExportFile] = []
    size = 0
    for file in files:
        loaded = file.loaded_bytes()
        if step and size + loaded > bytes_max:
            yield step
            step, size = [], 0
        step.append(file)
        size += loaded
    if step:
        yield step
