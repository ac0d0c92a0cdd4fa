"""Goal: a node that cannot use a database learns which node uses it, and what to do.

Method: the real command twice on one database of a real PostgreSQL server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.support.postgres import PostgresServer

ALONE = ()
WORKERS = ("--workers", "2")
BY = r"a connection from \S+ \(process \d+ of the server\)"
NAME_TAKEN = rf"the cluster of this database has a member named '%s' already: {BY}; give this node a name of its own"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        # The locks of a cluster on another database mean nothing here.
        folder = tmp_path_factory.mktemp("other")
        with NodeProcess(folder / "data", arguments=("--database", server.url_of("postgres"), "--cluster", "m1")):
            yield server


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (ALONE, ALONE, rf"another node uses this database: {BY}; stop that node"),
        (ALONE, ("--cluster", "m1"), rf"a node that is not in a cluster uses this database: {BY}; stop that node"),
        (ALONE, WORKERS, rf"a node that is not in a cluster uses this database: {BY}; stop that node"),
        (("--cluster", "m1"), ALONE, rf"a cluster, or .* uses this database: {BY}; give this node a name"),
        (WORKERS, ALONE, rf"a cluster, or a node with several workers, uses this database: {BY}; give this node"),
        (("--cluster", "m1"), ("--cluster", "m1"), NAME_TAKEN % "m1"),
        (WORKERS, WORKERS, NAME_TAKEN % r"w0[01]"),
    ],
)
def test_the_reason_is_told(
    server: PostgresServer, tmp_path: Path, first: Sequence[str], second: Sequence[str], told: str
) -> None:
    url = ("--database", server.url_of(server.new_database()))
    other = NodeProcess(tmp_path / "second", arguments=(*url, *second))
    with NodeProcess(tmp_path / "first", arguments=(*url, *first)) as node:
        with pytest.raises(NodeNotStarted, match="ended with 1: "), other:
            pass
        # Each worker that finds the database in use says so, until the node is stopped.
        lines = [line for line in other.log_file.read_text().splitlines() if not line.startswith("{")]
        assert lines
        for line in lines:
            assert re.match(f"stream-node: {told}", line)
        assert node.stop() == 0
