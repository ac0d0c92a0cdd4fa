"""The plugin of pytest: the fixtures `stream_node`, `stream_client` and `async_stream_client` (docs/how-to/test.md).

It imports nothing of the node before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stream_client import StreamClient
    from stream_client.blocking import StreamClient as BlockingClient
    from stream_node.testing import HostedNode

OWN_PACKAGES = frozenset(
    {
        *("bare", "block_manager", "block_node", "cardinal_streams", "index_service", "ockam", "pyspark_stream_node"),
        *("spark_export", "stream_client", "stream_node", "stream_service", "stream_storage"),
    }
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("stream-node", "stream-node")
    what = "what the fixture stream_node is: a node in memory, or a real one with files and sockets (default: memory)"
    group.addoption("--stream-node", choices=("memory", "real"), default="memory", help=what)
    # pytest rewrites the assertions in all packages of a distribution with a plugin. Tests that import these packages
    # would wait for that, and would run other code than the program.
    marked: Any = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked -= OWN_PACKAGES


@pytest.fixture
def stream_node(request: pytest.FixtureRequest) -> Iterator[HostedNode]:
    """An empty node for this test alone: pass its `address` to `connect`. With `--stream-node real`, a real node."""
    from stream_node.testing import memory_node, node

    with (node if request.config.getoption("stream_node") == "real" else memory_node)() as running:
        yield running


@pytest.fixture
def stream_client(stream_node: HostedNode) -> Iterator[BlockingClient]:
    """A blocking client of the test's node, for tests that are plain functions."""
    from stream_client import blocking

    with blocking.connect(stream_node.address) as client:
        yield client


@pytest.fixture
async def async_stream_client(stream_node: HostedNode) -> AsyncIterator[StreamClient]:
    """An async client of the test's node, for async tests of pytest-trio, of the plugin of AnyIO, and of
    pytest-asyncio in its mode `auto`."""
    from stream_client import connect

    async with connect(stream_node.address) as client:
        yield client
