"""The implementations of the log that every contract test runs on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.storage_samples import Source, open_sources


@pytest.fixture(params=["memory", "sqlite", "sqlite by rows"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    if request.param == "sqlite by rows":
        monkeypatch.setattr("storage.log.can_join", lambda connection: False)
    with open_sources(str(request.param).split()[0], tmp_path / "data") as opened:
        yield opened
