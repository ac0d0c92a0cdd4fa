"""Every test here has folders of its own for contexts and data, and no variable of the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here; each uses streams of its own."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


@pytest.fixture
def at_node(command: CommandLine, node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with that node in `STREAM_NODE_ADDRESS`."""
    monkeypatch.setenv("STREAM_NODE_ADDRESS", node.address)
    return command


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return str(request.node.name)
