"""Creates and publishes versions of the tables of a pipeline. A published version is a folder that never changes.

OUT/latest -> builds/00000000000000000007          a link to the last complete version
OUT/builds/00000000000000000007/silver/messages/part-000007-0000.parquet
OUT/builds/00000000000000000007/state/             the state that the next run needs

A new version begins with hard links to the files of the previous version. A run adds and removes files in the new
version, and never changes a file. One atomic rename changes the link `latest`, so all tables and the state become
visible together. If a crash leaves an unfinished version, the next run removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ockam.files.durable_files import make_folder, sync
from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.tables.layout import point_to, remove_tree, sync_tree
from spark_export.exporter.tables.parquet_table import link_or_copy

LATEST, BUILDS, STATE = "latest", "builds", "state"
KEEP_S: Final = 3600.0
"""How long a replaced version is retained for programs that still read it, in seconds."""
ROW_GROUP_ROWS: Final = 128 * 1024


class Version:
    """An unpublished version of the tables. Every table has one file without rows, to show readers its columns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = int(folder.name)
        self._count = 0

    def define(self, schemas: Mapping[str, pa.Schema]) -> None:
        for name, schema in schemas.items():
            if not (self.folder / name).is_dir():
                (self.folder / name).mkdir(parents=True)
                self._write(self.folder / name / "empty.parquet", schema.empty_table())

    def files(self, table: str, tag: str = "") -> list[Path]:
        return sorted(path for path in (self.folder / table).glob(f"{tag}*.parquet") if path.name != "empty.parquet")

    def next_name(self, tag: str) -> str:
        self._count += 1
        return f"{tag}-{self._number:06d}-{self._count:04d}.parquet"

    def write(self, table: str, rows: pa.Table, tag: str = "part", name: str | None = None) -> Path:
        """Adds a file, which is then on disk (fsync), to a table. Returns its path."""
        path = self.folder / table / (name or self.next_name(tag))
        self._write(path, rows)
        return path

    def _write(self, path: Path, rows: pa.Table) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        sync(path)


class Versions:
    """The versions of the tables in one output folder. The caller must hold the lock of the folder."""

    def __init__(self, out: Path, *, keep_s: float = KEEP_S) -> None:
        self.out = out.absolute()
        self._builds = self.out / BUILDS
        self._keep_s = keep_s
        make_folder(self._builds)

    def latest(self) -> Path | None:
        """Returns the folder of the last published version, or None."""
        link = self.out / LATEST
        return link.resolve() if link.is_symlink() else None

    def recover(self) -> int:
        """Removes unfinished versions that remain after a crash."""
        latest = self.latest()
        unfinished = [path for path in self._builds.iterdir() if latest is None or path.name > latest.name]
        for path in unfinished:
            remove_tree(path)
        return len(unfinished)

    def begin(self, base: Path | None) -> Version:
        """Creates the folder of the next version with links to the table files of `base`, if any."""
        latest = self.latest()
        number = 1 + (0 if latest is None else int(latest.name))
        folder = self._builds / f"{number:020d}"
        folder.mkdir()
        if base is not None:
            for path in sorted(base.rglob("*.parquet")):
                if path.relative_to(base).parts[0] != STATE:
                    link_or_copy(path, folder / path.relative_to(base))
        failpoint("pipeline_begun")
        return Version(folder)

    def publish(self, version: Version) -> None:
        """Publishes a version to readers. Removes versions that were replaced more than `keep_s` seconds ago."""
        sync_tree(version.folder)
        sync(self._builds)
        failpoint("pipeline_written")
        before = self.latest()
        if before is not None:
            # A published version never changes, so the modification time of its folder can record when it was replaced.
            os.utime(before)
        point_to(self.out / LATEST, version.folder)
        failpoint("pipeline_published")
        for path in self._builds.iterdir():
            if path not in (before, version.folder) and path.stat().st_mtime <= time.time() - self._keep_s:
                remove_tree(path)
