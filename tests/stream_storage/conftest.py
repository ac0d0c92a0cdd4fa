"""The implementations of the log that every contract test runs on, and where the tests keep their files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stream_storage.storage_samples import MEMORY_DIRECTORY, Source, fresh_database, open_sources


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if there is room: these tests sync thousands of times, and none needs a real disk."""
    if MEMORY_DIRECTORY is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="stream-node-", dir=MEMORY_DIRECTORY) as directory:
        yield Path(directory)


@pytest.fixture(params=["memory", "sqlite", "sqlite by rows", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    if request.param == "postgres":
        with fresh_database(request.getfixturevalue("postgres_server")) as database:
            yield database
        return
    if request.param == "sqlite by rows":
        monkeypatch.setattr("stream_storage.sqlite.log.can_join", lambda connection: False)
    with open_sources(str(request.param).split()[0], tmp_path / "data") as opened:
        yield opened
