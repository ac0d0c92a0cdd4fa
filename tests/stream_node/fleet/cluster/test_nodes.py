"""Goal: several nodes on one database serve all streams together, through every failure of one of them.

Method: real nodes as processes beside a real PostgreSQL server; users with the real client at every node; nodes are
stopped, killed and frozen; what is stored is read by another program, psql.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client import blocking
from tests.stream_node.fleet.cluster.nodes import Follower, Nodes, Publisher, log_lines, rows, wait_for
from tests.support.postgres import PostgresServer

STREAMS = 6


@pytest.fixture
def cluster(server: PostgresServer, database: str, tmp_path: Path) -> Nodes:
    """Three nodes on a database of their own, which do not run yet."""
    return Nodes(server, database, tmp_path, 3)


def test_every_node_serves_every_stream(cluster: Nodes) -> None:
    with cluster:
        cluster.wait_shared(3)
        for number, node in enumerate(cluster.all):
            with blocking.connect(node.address) as client:
                for name in (f"s{each}" for each in range(STREAMS)):
                    stream = client.create(name)
                    assert stream.push(b"%d" % number) == number
                    assert [message.data for message in stream.pull(index=0)] == [b"0", b"1", b"2"][: number + 1]
                parts = client.create_partitioned("parts", 20)
                assert [part.push(b"x") for part in parts.partitions] == [number] * 20
                saved = blocking.SavedIndexes(client, "reader")
                assert saved.get("parts") == number
                saved.save("parts", {0: number + 1})
                assert len(list(client.list_streams())) == STREAMS + 20
        assert all(node.stop() == 0 for node in cluster.all)
    assert cluster.owners() == {"": 256}


def test_streams_move_while_they_are_pushed_to(cluster: Nodes) -> None:
    """Goal: a node that joins and a node that leaves are not noticed by clients of the others, who push and follow."""
    first, second, third = cluster.all
    with first, second:
        wait_for(lambda: set(cluster.owners()) == {"n0", "n1"})
        publishers = [
            Publisher(lambda node=node: node.address, f"s{number}")  # type: ignore[misc]
            for number in range(STREAMS)
            for node in (first if number % 2 else second,)
        ]
        followers = [Follower(second.address, f"s{number}") for number in range(STREAMS)]
        for user in (*publishers, *followers):
            user.start()
        for publisher in publishers:
            publisher.wait(20)
        with third:
            cluster.wait_shared(3)
            for publisher in publishers:
                publisher.wait(20)
            assert third.stop() == 0
        cluster.wait_shared(2)
        for publisher in publishers:
            publisher.wait(20)
            publisher.end()
        for number, publisher in enumerate(publishers):
            assert not publisher.doubtful
            stored = rows(cluster.ask, f"s{number}")
            publisher.check(stored)
            followers[number].check(stored)


@pytest.mark.parametrize(
    "failure",
    [pytest.param(signal.SIGKILL, id="kill", marks=pytest.mark.soak), pytest.param(signal.SIGSTOP, id="freeze")],
)
def test_an_owner_that_fails_is_replaced(cluster: Nodes, failure: signal.Signals) -> None:
    """Goal: the shards of a dead node are served again, no confirmed message is lost, none is stored twice, the
    dead node writes nothing when it wakes, and followers of its streams go on without a gap."""
    with cluster:
        cluster.wait_shared(3)
        # Clients of the node that fails go to another one after that.
        publishers = [
            Publisher(lambda node=cluster.all[1 + number % 2]: node.address, f"s{number}", patient=False)  # type: ignore[misc]
            for number in range(STREAMS)
        ]
        # They are sent messages by the node that fails, through another one, without a request for each.
        followers = [Follower(cluster.all[1].address, f"s{number}") for number in range(STREAMS)]
        for user in (*publishers, *followers):
            user.start()
        for publisher in publishers:
            publisher.wait(20)
        cluster.all[0].signal(failure)
        wait_for(lambda: "n0" not in cluster.owners())
        for publisher in publishers:
            publisher.wait(20)
        if failure == signal.SIGSTOP:
            cluster.all[0].signal(signal.SIGCONT)
            assert cluster.all[0].wait() != 0
            assert any("another node has taken over" in str(line) for line in log_lines(cluster.all[0]))
        for publisher in publishers:
            publisher.end()
        for number, publisher in enumerate(publishers):
            stored = rows(cluster.ask, f"s{number}")
            publisher.check(stored)
            followers[number].check(stored)
