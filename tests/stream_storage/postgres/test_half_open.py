"""Goal: a connection whose node is gone without a word, with its machine or its network, does not hold the lock of the
writing node for hours. Method: the kernel tells which timers run for the server's ends of the connections.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_storage.postgres.database import PostgresDatabase
from tests.support.postgres import PostgresServer

SOCKETS = Path("/proc/net/tcp")
ESTABLISHED, RETRANSMIT, KEEPALIVE = "01", "01", "02"
TICKS_A_SECOND = 100
KEEPALIVE_S_MAX = 5.0


@pytest.fixture
def database(server: PostgresServer) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase.open(server.url)
    yield database
    database.close()


@pytest.mark.skipif(not SOCKETS.exists(), reason="only Linux tells the timers of its sockets")
def test_the_server_asks_soon_whether_a_silent_node_is_there(
    server: PostgresServer, database: PostgresDatabase
) -> None:
    sessions = [database.session(), database.read_session()]
    # For a moment after an answer, the timer for its acknowledgement runs instead.
    while RETRANSMIT in dict(timers := list(server_timers(server.port))):
        time.sleep(0.05)
    assert len(timers) == len(sessions)
    for kind, after_s in timers:
        assert kind == KEEPALIVE
        assert after_s <= KEEPALIVE_S_MAX
    for session in sessions:
        session.close()


def server_timers(port: int) -> Iterator[tuple[str, float]]:
    """The timer of each connection to a port, at its end: the kind, and when it expires, in seconds."""
    for line in SOCKETS.read_text().splitlines()[1:]:
        _, local, _, state, _, timer, *_ = line.split()
        if int(local.partition(":")[2], 16) == port and state == ESTABLISHED:
            kind, _, ticks = timer.partition(":")
            yield kind, int(ticks, 16) / TICKS_A_SECOND
