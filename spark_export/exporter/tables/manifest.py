"""The log of a plain Parquet table on a store: JSON objects, called manifests, with numbers from 1.

Each manifest adds files to the table and removes files from it. The table is the result of all manifests, applied in
the order of their numbers. Every CHECKPOINT_EVERY-th manifest also contains a checkpoint, which lists all files of the
table, so that a reader reads only the manifests since the last checkpoint. This module is pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from ockam.files.parsing import parse_json
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.model import FileEntry, Range

VERSION: Final = 1
"""The version of the JSON format. A change that older readers cannot read increases it."""
CHECKPOINT_EVERY: Final = 16
FOLDER: Final = "_manifests"
RUN, REWRITE, FENCE = "run", "rewrite", "fence"
"""The kinds of manifests.

RUN adds the files of one run of the exporter. REWRITE is a compaction or repair, and replaces files. FENCE changes no
files of the table. It uses up the next number, so that an earlier exporter can no longer publish under this number. It
can also record that replaced files were deleted.
"""


@dataclass(frozen=True, kw_only=True)
class TableFile(FileEntry):
    """A file of the table. `path` is relative to the table's address, `run` the run that exported the rows."""

    run: int


@dataclass(frozen=True)
class Manifest:
    """One entry of the log.

    writer: a random id of the exporter.
    run: the number of the exporter's run, or None for a manifest that belongs to no run.
    generation: the version of the whole table, which each compaction or repair increases.
    remove: paths of files that leave the table and stay in the store for readers.
    expired: paths of files that left the table earlier and are now deleted from the store.
    """

    number: int
    table_id: str
    kind: str
    made_us: int
    writer: str
    generation: int
    run: int | None = None
    ranges: Sequence[Range] = ()
    add: Sequence[TableFile] = ()
    remove: Sequence[str] = ()
    expired: Sequence[str] = ()


@dataclass(frozen=True)
class TableState:
    """The state of the table after the manifest with this number; 0 for a table without manifests.

    removed: the removal time of each removed file that is still in the store, by path, in microseconds since 1970.
    """

    number: int = 0
    table_id: str = ""
    generation: int = 1
    latest_run: int = 0
    files: dict[str, TableFile] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)

    def after(self, manifest: Manifest) -> TableState:
        """Returns the state after the next manifest. Raises ExportMismatch for another number or table."""
        if manifest.number != self.number + 1:
            raise ExportMismatch(f"the table's log lacks the manifest {self.number + 1}: it is damaged")
        if self.table_id not in ("", manifest.table_id):
            raise ExportMismatch(f"the manifest {manifest.number} belongs to another table ({manifest.table_id})")
        gone, expired = set(manifest.remove), set(manifest.expired)
        files = {path: file for path, file in self.files.items() if path not in gone}
        files |= {file.path: file for file in manifest.add}
        removed = self.removed | dict.fromkeys(manifest.remove, manifest.made_us)
        return TableState(
            manifest.number,
            manifest.table_id,
            manifest.generation,
            max(self.latest_run, manifest.run or 0) if manifest.kind == RUN else self.latest_run,
            files,
            {path: made_us for path, made_us in removed.items() if path not in expired and path not in files},
        )


def name_of(number: int) -> str:
    return f"{FOLDER}/{number:020d}.json"


def number_of(name: str) -> int | None:
    """Returns the number of a manifest from the name of its object; None for other objects."""
    digits = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return int(digits) if digits.isdecimal() and name == name_of(int(digits)) else None


def encode(manifest: Manifest, after: TableState) -> bytes:
    """Returns a manifest as JSON. Every CHECKPOINT_EVERY-th gets the state `after` it as a checkpoint."""
    content = {"format": "stream-node-table", "version": VERSION, **asdict(manifest), "checkpoint": None}
    if manifest.number % CHECKPOINT_EVERY == 0:
        whole = replace(after, files={})
        content["checkpoint"] = asdict(whole) | {"files": [asdict(file) for file in after.files.values()]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes, name: str) -> tuple[Manifest, TableState | None]:
    """Decodes a manifest and its checkpoint, if it has one.

    Raises ExportMismatch for data that is no manifest, or that a later version wrote.
    """
    try:
        content: dict[str, Any] = parse_json(data)
        if content["version"] > VERSION:
            raise ExportMismatch(
                f"{name} was written by a later version ({content['version']}); this one reads {VERSION}"
            )
        checkpoint = content["checkpoint"]
        names = Manifest.__dataclass_fields__
        manifest = Manifest(
            **{key: value for key, value in content.items() if key in names}
            | {
                "ranges": tuple(Range(**each) for each in content["ranges"]),
                "add": tuple(TableFile(**each) for each in content["add"]),
            }
        )
        if checkpoint is None:
            return manifest, None
        files = {each["path"]: TableFile(**each) for each in checkpoint["files"]}
        return manifest, TableState(**checkpoint | {"files": files})
    except (ValueError, KeyError, TypeError) as error:
        raise ExportMismatch(f"{name} is no manifest of a table: {error}") from error
