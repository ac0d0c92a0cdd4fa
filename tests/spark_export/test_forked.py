"""Goal: a connection of Spark that was opened before a fork is of no use to the child. Method: a real fork and node."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from spark_export.source.node_client import NodeConnection
from stream_node.node.process import NodeProcess
from tests.client.test_forked import in_child


def test_a_child_sends_nothing_over_the_parents_connection(tmp_path: Path) -> None:
    def attempt() -> str:
        try:
            return f"got {connection.list_partitions('s')}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with NodeProcess(tmp_path / "data") as node, NodeConnection(node.address, 20.0) as connection:
        connection.create_stream("s", 2)
        before = connection.list_partitions("s")
        assert in_child(attempt).startswith("ConnectionForked: this connection to")
        assert connection.list_partitions("s") == before
