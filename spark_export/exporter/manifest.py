"""The log of a plain Parquet table on a store, as JSON: manifests with numbers from 1, and the table that they make
together. This module is pure.

A manifest adds and removes files. The table is what all manifests make, in the order of their numbers. Every
CHECKPOINT_EVERY-th manifest also holds the whole table, so that a reader needs few of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.model import Range

VERSION: Final = 1
"""Raised with every change that older readers cannot read."""
CHECKPOINT_EVERY: Final = 16
FOLDER: Final = "_manifests"
RUN, REWRITE, FENCE = "run", "rewrite", "fence"
"""The kinds of manifests: a run adds its files; a compaction or repair replaces files; a fence changes nothing, and
takes a number that an exporter which is gone could still use."""


@dataclass(frozen=True)
class TableFile:
    """A file of the table. path: relative to the table's address. The other fields are those of `FileEntry`."""

    path: str
    run: int
    stream: str
    era: int
    date: str
    rows: int
    data_bytes: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One entry of the log.

    made_us: when, in microseconds since 1970, by the exporter's clock. writer: a random id of the exporter, which makes
    each manifest unique. run: the number of the run, or None. generation: the number of the last rewrite. remove: paths
    of files that are no longer in the table, and still in the store. expired: paths of such files that were deleted.
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
    """The table after the manifest `number`; 0 before the first one.

    files: by path. removed: for each removed file that is still in the store, when it was removed, in microseconds
    since 1970. latest_run: the highest number of a run in the table, or 0.
    """

    number: int = 0
    table_id: str = ""
    generation: int = 1
    latest_run: int = 0
    files: dict[str, TableFile] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)

    def after(self, manifest: Manifest) -> TableState:
        """The table after the next manifest. Raises ExportMismatch for a manifest of another number or table."""
        if manifest.number != self.number + 1:
            raise ExportMismatch(f"the table's log lacks the manifest {self.number + 1}: it is damaged")
        if self.table_id not in ("", manifest.table_id):
            raise ExportMismatch(f"the manifest {manifest.number} belongs to another table ({manifest.table_id})")
        gone = set(manifest.remove)
        files = {path: file for path, file in self.files.items() if path not in gone}
        files |= {file.path: file for file in manifest.add}
        removed = self.removed | dict.fromkeys(manifest.remove, manifest.made_us)
        return TableState(
            manifest.number,
            manifest.table_id,
            manifest.generation,
            max(self.latest_run, manifest.run or 0) if manifest.kind == RUN else self.latest_run,
            files,
            {path: made_us for path, made_us in removed.items() if path not in set(manifest.expired)},
        )


def name_of(number: int) -> str:
    """The name of a manifest's object, relative to the table's address."""
    return f"{FOLDER}/{number:020d}.json"


def number_of(name: str) -> int | None:
    """The number of a manifest, from its object's name; None for the name of anything else."""
    digits = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
    return int(digits) if digits.isdecimal() and name == name_of(int(digits)) else None


def encode(manifest: Manifest, after: TableState) -> bytes:
    """Encodes a manifest. after: the table after the manifest, which a checkpoint holds."""
    content = {"format": "stream-node-table", "version": VERSION, **asdict(manifest), "checkpoint": None}
    if manifest.number % CHECKPOINT_EVERY == 0:
        whole = replace(after, files={})
        content["checkpoint"] = asdict(whole) | {"files": [asdict(file) for file in after.files.values()]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes, name: str) -> tuple[Manifest, TableState | None]:
    """Decodes a manifest, and the table of a checkpoint. Raises ExportMismatch."""
    try:
        content: dict[str, Any] = json.loads(data)
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
