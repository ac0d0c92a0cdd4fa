"""An authority with certificates for all tests of TLS, made once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.tls.keys import Keys, settings


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def own_keys(tmp_path: Path) -> Keys:
    """For a test that replaces files."""
    return Keys(tmp_path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> CommandLine:
    """The command line with folders of its own, and without the user's variables."""
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return CommandLine(monkeypatch, capfdbinary)


@pytest.fixture(scope="session")
def node(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The installed command with mutual TLS, for all tests of commands."""
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in settings(keys).items()}
    data_dir = tmp_path_factory.mktemp("node") / "data"
    with NodeProcess(data_dir, environment=variables, arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0
