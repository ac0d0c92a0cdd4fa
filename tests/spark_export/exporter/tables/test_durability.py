"""Goal: what the table's log names outlives a power cut: everything of the table is synced before it says so.

Method: the calls of fsync in this process, by inode, beside the files and folders that a run leaves. A disk that loses
what was not synced would be the proof; there is none here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from tests.spark_export.exporter.export_world import World

LIBRARIES = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}
OF_SQLITE = {"_history.sqlite", "catalog.sqlite"}
"""SQLite syncs its own files, past Python."""
PASSING = {"exporter.lock", "staging"}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Inodes that were synced since."""
    found: set[int] = set()
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        fsync(descriptor)
        found.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", recording)
    return found


@pytest.fixture(params=LIBRARIES)
def formatted(request: pytest.FixtureRequest, world: World) -> World:
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    world.settings = replace(world.settings, format=request.param)
    return world


def kept(folder: Path) -> Iterator[Path]:
    """Every file of an export that matters after a power cut, and every folder that names one."""
    yield folder.parent
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in PASSING]
        if folders or names:
            yield Path(root)
        yield from (Path(root, name) for name in names if name not in OF_SQLITE | PASSING)


def unsynced(folder: Path, synced: set[int]) -> list[str]:
    return [str(path.relative_to(folder.parent)) for path in kept(folder) if path.stat().st_ino not in synced]


def test_all_of_a_run_is_synced(formatted: World, synced: set[int]) -> None:
    formatted.push(20)
    formatted.run()
    assert unsynced(formatted.folder, synced) == []
    formatted.push(20)
    formatted.run()
    assert unsynced(formatted.folder, synced) == []


@pytest.mark.parametrize("verb", ["compact", "forget"])
def test_a_rewrite_is_synced(formatted: World, synced: set[int], verb: str) -> None:
    for key in (b"a", b"b"):
        formatted.push(20, key=key)
        formatted.run()
    if verb == "compact":
        assert formatted.compact().merged == 2
    else:
        assert formatted.log().forget(formatted.stream, b"a", 2**62) == 20
    assert unsynced(formatted.folder, synced) == []
