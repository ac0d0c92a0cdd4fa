"""What the exporter's tests share. Most need the extra `spark`, and no Java but where they say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_node.node.process import NodeProcess

if TYPE_CHECKING:
    from tests.spark_export.exporter.export_world import World


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here; each uses streams of its own."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


@pytest.fixture
def world(tmp_path: Path, shared_node: NodeProcess, request: pytest.FixtureRequest) -> World:
    """A folder, and a stream that no other test has."""
    from tests.spark_export.exporter.export_world import World

    return World(tmp_path / "lake", shared_node, str(request.node.name))


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def each_format(tmp_path: Path, shared_node: NodeProcess, request: pytest.FixtureRequest) -> World:
    """The same with a table of each format."""
    from tests.spark_export.exporter.export_world import LIBRARIES, World

    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    return World(tmp_path / "lake", shared_node, str(request.node.name), request.param)
