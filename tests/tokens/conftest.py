"""The command line with folders of its own, and without the user's variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream_node.node.config import ENVIRONMENT_PREFIX
from tests.cli.command import CommandLine


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> CommandLine:
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return CommandLine(monkeypatch, capfdbinary)
