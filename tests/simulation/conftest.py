"""Where the simulated nodes live."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_service.workers import stream


@pytest.fixture
def ground() -> Iterator[Path]:
    """For their files: in memory where the system has that; nothing here is about disks."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def workers_rest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of streams end and start again all the time, between any two messages."""
    monkeypatch.setattr(stream, "REST_AFTER_S", 0.0)
