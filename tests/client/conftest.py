"""A node in a child process, and the three shells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stream_node.node.process import NodeProcess
from tests.client.shells import SHELLS, ShellName, World


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A whole server for all tests here: the real command, real files, real sockets. Each uses streams of its own."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> ShellName:
    name: ShellName = request.param
    return name


@pytest.fixture
def world(shell: ShellName, node: NodeProcess, request: pytest.FixtureRequest) -> World:
    return World(shell, node.address, request.node.name)
