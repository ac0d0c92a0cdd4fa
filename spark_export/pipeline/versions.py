"""The versions of a pipeline's tables. A version is a folder that never changes after it is published.

OUT/latest -> builds/00000000000000000007          the link to the last complete version
OUT/builds/00000000000000000007/silver/messages/part-000007-0000.parquet
OUT/builds/00000000000000000007/state/             what the next increment needs

A new version begins with hard links to the files of the version before. Files are added and removed, and never
changed. One rename turns the link, so tables and state become visible together. A version that a crash left unfinished
is removed by the next run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.layout import point_to, remove_tree, sync_tree
from spark_export.exporter.parquet_table import link_or_copy
from storage.durable_files import make_folder, sync

LATEST, BUILDS, STATE = "latest", "builds", "state"
KEEP_S: Final = 3600.0
"""How long a replaced version is kept for programs that still read it, in seconds."""
ROW_GROUP_ROWS: Final = 128 * 1024


class Version:
    """A version that is being made. Every table has a file without rows, so that readers see the columns of an empty
    table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = int(folder.name)
        self._count = 0

    def define(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Makes the tables that do not exist yet."""
        for name, schema in schemas.items():
            if not (self.folder / name).is_dir():
                (self.folder / name).mkdir(parents=True)
                self._write(self.folder / name / "empty.parquet", schema.empty_table())

    def files(self, table: str, tag: str = "") -> list[Path]:
        """Returns the files of a table whose names begin with `tag`, without the file that has no rows."""
        return sorted(path for path in (self.folder / table).glob(f"{tag}*.parquet") if path.name != "empty.parquet")

    def next_name(self, tag: str) -> str:
        """Returns a file name that no version has used."""
        self._count += 1
        return f"{tag}-{self._number:06d}-{self._count:04d}.parquet"

    def write(self, table: str, rows: pa.Table, tag: str = "part", name: str | None = None) -> Path:
        """Adds a file to a table. The file is on disk when this returns."""
        path = self.folder / table / (name or self.next_name(tag))
        self._write(path, rows)
        return path

    def _write(self, path: Path, rows: pa.Table) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        sync(path)


class Versions:
    """The versions in one output folder. The caller holds the folder's lock."""

    def __init__(self, out: Path, *, keep_s: float = KEEP_S) -> None:
        self.out = out.absolute()
        self._builds = self.out / BUILDS
        self._keep_s = keep_s
        make_folder(self._builds)

    def latest(self) -> Path | None:
        """Returns the folder of the last complete version; None before the first."""
        link = self.out / LATEST
        return link.resolve() if link.is_symlink() else None

    def recover(self) -> int:
        """Removes versions that were not published. Returns how many."""
        latest = self.latest()
        unfinished = [path for path in self._builds.iterdir() if latest is None or path.name > latest.name]
        for path in unfinished:
            remove_tree(path)
        return len(unfinished)

    def begin(self, base: Path | None) -> Version:
        """Begins the next version. base: the version whose files it has at first; None for an empty version."""
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
        """Makes this version the one that readers see, and removes versions that were replaced long enough ago."""
        sync_tree(version.folder)
        sync(self._builds)
        failpoint("pipeline_written")
        before = self.latest()
        if before is not None:
            # No file is added to a published version, so the time of its folder can say when it was replaced.
            os.utime(before)
        point_to(self.out / LATEST, version.folder)
        failpoint("pipeline_published")
        for path in self._builds.iterdir():
            if path not in (before, version.folder) and path.stat().st_mtime <= time.time() - self._keep_s:
                remove_tree(path)
