"""Goal: a node with mirrors does not become a member of a cluster, where they would have no source and no way out.

Method: real nodes on SQLite and on a real PostgreSQL server; the real commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client import blocking
from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.support.postgres import PostgresServer

PATIENCE_S = 60.0
NAMES = ("follows", "fences")


def mirror(*arguments: str, at: NodeProcess) -> str:
    command = [sys.executable, "-m", "stream_node", "mirror", *arguments, "--node", at.address]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_listed(node: NodeProcess, wanted: dict[str, str]) -> None:
    """Returns when the node lists these mirrors with these conditions, and all of them have the message."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        rows = [json.loads(line) for line in mirror("status", "--json", at=node).splitlines()]
        found = {row["stream"]: row["condition"] for row in rows if row["next_index"] == 1}
        if found == wanted:
            return
        assert time.monotonic() < deadline_s, rows
        time.sleep(0.05)


def test_a_node_with_mirrors_joins_only_without_them(server: PostgresServer, tmp_path: Path) -> None:
    url = ("--database", server.url_of("postgres"))

    def node(*arguments: str) -> NodeProcess:
        return NodeProcess(tmp_path / "node", arguments=(*url, *arguments))

    def assert_refused(arguments: Sequence[str], names: str) -> None:
        with pytest.raises(NodeNotStarted, match=f"ended with 2: .*: {names}; start this node alone"), node(*arguments):
            pass

    with NodeProcess(tmp_path / "source") as source, node() as alone:
        with blocking.connect(source.address) as client:
            for name in NAMES:
                client.create(name).push(b"x")
        for name in NAMES:
            mirror("add", name, "--from", source.address, at=alone)
        wait_listed(alone, dict.fromkeys(NAMES, "following"))
        source.kill()
        # The source cannot be fenced while it is away.
        mirror("promote", "fences", "--force", at=alone)
        assert alone.stop() == 0
    assert_refused(("--cluster", "m1"), "'fences', 'follows'")
    assert_refused(("--workers", "2"), "'fences', 'follows'")
    with node() as alone:
        mirror("remove", "follows", at=alone)
        assert alone.stop() == 0
    assert_refused(("--cluster", "m1"), "'fences'")
    with node() as alone:
        # The node first asks its former source, which does not answer, whether that has taken its place.
        wait_listed(alone, {"fences": "fencing"})
        mirror("remove", "fences", at=alone)
        assert alone.stop() == 0
    with node("--cluster", "m1") as member:
        with blocking.connect(member.address) as client:
            for name in NAMES:
                assert client.get_stream(name).partitions[0].push(b"y") == 1
        assert member.stop() == 0
