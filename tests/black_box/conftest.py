"""What the tests of the installed command share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess
from tests.support.command import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    home = tmp_path / "home"
    home.mkdir()
    return Command(home)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests of a file; it must stop in good order at the end."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as process:
        yield process
        assert process.stop() == 0
