"""Goal: a whole node keeps what it promises when its streams are in PostgreSQL.

Method: the real command and the real client beside a real primary and a real standby, which are killed, frozen and
promoted; what is stored is read by another program, psql.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client import ClientError, PushNotStored, RequestTimeout, blocking
from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.stream_storage.postgres.failover import Pair
from tests.support.command import ROOT, Command
from tests.support.postgres import PostgresServer

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    """A database of its own for each test."""
    return server.url_of(server.new_database())


def node_on(url: str, folder: Path, **settings: object) -> NodeProcess:
    environment = {f"STREAM_NODE_{name.upper()}": str(value) for name, value in settings.items()}
    folder.mkdir(exist_ok=True)
    return NodeProcess(folder / "data", arguments=("--database", url), environment=environment)


def log_lines(node: NodeProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.log_file.read_text().splitlines() if line.startswith("{")]


def test_streams_positions_and_sequences_are_there_after_a_kill(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    with node_on(url, tmp_path) as node:
        with blocking.connect(node.address) as client:
            stream = client.create_partitioned("things", 2).partitions[0]
            assert [stream.push(data) for data in (b"a", b"b", b"c")] == [0, 1, 2]
            blocking.SavedIndexes(client, "reader").save("things", {0: 2})
        node.kill()
        node.start()
        with blocking.connect(node.address) as client:
            stream = client.get_stream("things").partitions[0]
            assert [message.data for message in stream.pull(index=0)] == [b"a", b"b", b"c"]
            assert blocking.SavedIndexes(client, "reader").get("things") == 2
            assert stream.push(b"d") == 3
        assert node.stop() == 0
    database = url.rsplit("/", 1)[1]
    assert server.ask("SELECT next_index FROM streams ORDER BY partition", database).splitlines() == ["4", "0"]


def test_the_first_line_of_the_log_says_what_a_confirm_means(url: str, tmp_path: Path) -> None:
    with node_on(url, tmp_path) as node:
        (opened,) = [line for line in log_lines(node) if line["event"] == "database_opened"]
        assert "on no other machine: set synchronous_standby_names" in opened["meaning"]
        assert node.stop() == 0
    with Pair() as pair, node_on(pair.url, tmp_path / "pair") as node:
        (opened,) = [line for line in log_lines(node) if line["event"] == "database_opened"]
        assert opened["meaning"] == "a confirmed message is synced on the primary, and synced on ANY 1 (*)"


def test_a_second_node_is_refused_and_the_first_goes_on(url: str, tmp_path: Path) -> None:
    with node_on(url, tmp_path) as node:
        with pytest.raises(NodeNotStarted, match="another node uses this database: a connection from"):
            node_on(url, tmp_path / "second").start()
        with blocking.connect(node.address) as client:
            assert client.create("s").push(b"a") == 0


def test_a_node_whose_database_another_node_took_over_stores_nothing_more(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    """Goal: a frozen node cannot write when it wakes. Method: its connection is ended while it is frozen, and a second
    node takes over; then the first one wakes with a client that pushes."""
    database = url.rsplit("/", 1)[1]
    with node_on(url, tmp_path) as first, blocking.connect(first.address, reconnect=None) as client:
        stream = client.create("s")
        stream.push(b"before")
        first.signal(signal.SIGSTOP)
        server.ask(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}'")
        with node_on(url, tmp_path / "second") as second, blocking.connect(second.address) as other:
            assert other.create("s").push(b"between") == 1
            first.signal(signal.SIGCONT)
            for _ in range(2):
                with pytest.raises(ClientError, match="another node has taken over this database"):
                    stream.push(b"after")
            assert other.create("s").push(b"last") == 2
    rows = server.ask("SELECT convert_from(data, 'UTF8') FROM messages ORDER BY idx", database).splitlines()
    assert rows == ["before", "between", "last"]


def test_pushes_wait_for_a_server_up_to_the_bound_and_then_are_not_stored(
    server: PostgresServer, tmp_path: Path
) -> None:
    with PostgresServer() as own, node_on(own.url, tmp_path, database_wait_s="2s") as node:
        with blocking.connect(node.address, answer_timeout_s=PATIENCE_S) as client:
            stream = client.create("s")
            assert stream.push(b"a") == 0
            own.kill()
            with pytest.raises(PushNotStored, match="the connection to the database server was lost"):
                stream.push(b"b")
            own.start()
            deadline_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    assert stream.push(b"c") == 1
                    break
                except (PushNotStored, RequestTimeout):
                    assert time.monotonic() < deadline_s
            assert [message.data for message in stream.pull(index=0)] == [b"a", b"c"]
        assert node.stop() == 0


@pytest.mark.parametrize("failure", ["kill", "freeze"])
def test_clients_wait_while_a_standby_takes_the_place_of_the_primary(failure: str, tmp_path: Path) -> None:
    """Goal: a failover loses no confirmed message, stores none twice, and no client has to do anything. Method: one
    client pushes all the time; psql reads the new primary."""
    with Pair() as pair, node_on(pair.url, tmp_path, database_call_s="1s") as node:
        assert pair.standby is not None
        confirmed: list[int] = []
        ended = threading.Event()
        failures: list[BaseException] = []

        def push_all_the_time() -> None:
            try:
                with blocking.connect(node.address, answer_timeout_s=PATIENCE_S) as client:
                    stream = client.create("s")
                    while not ended.is_set():
                        confirmed.append(stream.push(b"%d" % len(confirmed)))
            except BaseException as error:
                failures.append(error)

        pusher = threading.Thread(target=push_all_the_time)
        pusher.start()
        wait_for(lambda: len(confirmed) > 50 or failures)
        getattr(pair.primary, failure)()
        pair.standby.promote()
        before = len(confirmed)
        wait_for(lambda: len(confirmed) > before + 50 or failures)
        ended.set()
        pusher.join()
        assert not failures
        assert confirmed == list(range(len(confirmed)))
        rows = pair.standby.ask("SELECT idx || ' ' || convert_from(data, 'UTF8') FROM messages ORDER BY idx")
        assert rows.splitlines() == [f"{number} {number}" for number in confirmed]
        events = [line["event"] for line in log_lines(node)]
        assert "database_connection_lost" in events
        assert "database_connected_again" in events


def test_pulls_go_on_from_a_standby_where_asked(tmp_path: Path) -> None:
    """Goal: while no server takes writes, pulls are answered, with every confirmed message. Method: the primary is
    killed and nobody is promoted; later it comes back. The node was started anew, so it has no messages in memory."""
    with Pair() as pair, node_on(pair.url, tmp_path, database_standby_reads="true") as node:
        with blocking.connect(node.address, answer_timeout_s=PATIENCE_S) as client:
            stream = client.create("s")
            for number in range(20):
                stream.push(b"%d" % number)
            node.kill()
            node.start()
            pair.primary.kill()
            assert [message.data for message in stream.pull(index=0)] == [b"%d" % number for number in range(20)]
            pair.primary.start()
            assert stream.push(b"20") == 20
            assert [message.data for message in stream.pull(index=19)] == [b"19", b"20"]
        assert [line["standby"] for line in log_lines(node) if line["event"] == "database_connected_again"].count(True)


def test_a_server_that_would_confirm_without_a_sync_is_refused_unless_told(tmp_path: Path) -> None:
    with PostgresServer({"fsync": "off"}) as unsafe:
        with pytest.raises(NodeNotStarted, match=r"can lose what it has confirmed \(fsync = off\)"):
            node_on(unsafe.url, tmp_path).start()
        with node_on(unsafe.url, tmp_path, database_unsafe="true") as node:
            assert node.stop() == 0


def test_doctor_says_what_a_confirm_means(url: str, command: Command, tmp_path: Path) -> None:
    command.environment["STREAM_NODE_DATABASE"] = url
    done = command("doctor", "--data-dir", tmp_path / "data", "--json")
    (finding,) = [found for found in done.row["findings"] if found["check"] == "database"]
    assert finding["status"] == "ok"
    assert "PostgreSQL" in finding["text"]
    assert "on no other machine" in finding["text"]
    with PostgresServer({"synchronous_commit": "off"}) as unsafe:
        command.environment["STREAM_NODE_DATABASE"] = unsafe.url
        done = command("doctor", "--data-dir", tmp_path / "data", "--json")
        (finding,) = [found for found in done.row["findings"] if found["check"] == "database"]
        assert finding["status"] == "wrong"
        assert "synchronous_commit = off" in finding["text"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:secret@127.0.0.1/x", "the URL contains a password"),
        ("postgresql://me@127.0.0.1/x?sslpassword=secret", "the URL contains a password"),
        ("mysql://me@127.0.0.1/x", "the node knows postgresql://USER@HOST:PORT/DATABASE"),
        ("postgresql://me@127.0.0.1:port/x", "the URL of the database is not valid"),
    ],
)
def test_a_wrong_url_is_refused_without_showing_its_password(url: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(NodeNotStarted, match=reason) as refused:
        node_on(url, tmp_path).start()
    assert "secret" not in str(refused.value)


def test_without_the_extra_the_node_says_how_to_get_it(url: str, tmp_path: Path) -> None:
    """Method: a process in which psycopg cannot be imported, as on a machine without the extra."""
    program = "import sys; sys.modules['psycopg'] = None\nfrom stream_node.cli.app import main; main()"
    command = [sys.executable, "-c", program, "serve", "--data-dir", str(tmp_path), "--database", url]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0
    assert "pip install '.[postgres]'" in done.stderr


def wait_for(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
