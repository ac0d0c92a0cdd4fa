"""Goal: a node with several worker processes is one node for its clients, and goes on when a worker dies.

Method: the real command with real clients on connections that reach different workers; workers are killed; databases
are read by SQLite itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from block_node.protocol_reading import STATUS, StatusRequest
from stream_client import ClientError, ConnectionLost, blocking
from stream_node.node.node_connections import (
    ADDRESS,
    CLOSE,
    CONNECTIONS,
    CloseRequest,
    ConnectionsRequest,
    ConnectionsResponse,
)
from stream_node.node.process import NodeNotStarted, NodeProcess

WORKERS = 3
STREAMS = 12
CLIENTS = 12
"""So many connections reach all workers, but for one time in forty."""
PATIENCE_S = 60.0


def wait_for(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.05)


def workers_of(node: NodeProcess) -> list[int]:
    """The process ids of the workers: the children of the node that began sessions of their own."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[1:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == node.pid and session == folder.name:
                found.append(int(folder.name))
    return sorted(found)


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for the tests that leave it as it is."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", arguments=("--workers", str(WORKERS))) as node:
        yield node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", arguments=("--workers", str(WORKERS))) as node:
        yield node


@pytest.mark.slow
def test_every_connection_reaches_every_stream(node: NodeProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(blocking.connect(node.address)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            for name in (f"s{each}" for each in range(STREAMS)):
                stream = client.create(name)
                assert stream.push(b"%d" % number) == number
            parts = client.create_partitioned("parts", 20)
            assert [part.push(b"x") for part in parts.partitions] == [number] * 20
            saved = blocking.SavedIndexes(client, f"reader{number}")
            saved.save("parts", {3: number})
            assert saved.get("parts", 3) == number
            names = sorted((info.stream_name, info.partition) for info in client.list_streams())
            assert names == sorted([*((f"s{each}", 0) for each in range(STREAMS)), *(("parts", p) for p in range(20))])
            found = [(row.client_id, row.index) for row in blocking.list_positions(client)]
            assert found == sorted((f"reader{each}", each) for each in range(number + 1))
        messages = [message.data for message in clients[0].get_stream("s1").partitions[0].pull(index=0)]
        assert messages == [b"%d" % number for number in range(CLIENTS)]
    assert node.stop() == 0
    # Every worker has some of the streams, none has one of another.
    by_worker = [
        sqlite3.connect(tmp_path / "data" / f"w{number:02}" / "streams.sqlite")
        .execute("SELECT name, partition FROM streams WHERE name NOT LIKE 'block_node.%'")
        .fetchall()
        for number in range(WORKERS)
    ]
    assert all(by_worker)
    assert sorted(each for rows in by_worker for each in rows) == sorted(names)


def test_a_long_list_comes_in_pages_in_order(shared_node: NodeProcess) -> None:
    with blocking.connect(shared_node.address) as client:
        client.create_partitioned("many", 2_500)
        found = [(info.stream_name, info.partition) for info in client.list_streams()]
        assert found == [("many", partition) for partition in range(2_500)]


def test_a_client_learns_who_serves_a_stream_and_goes_there(shared_node: NodeProcess) -> None:
    with blocking.connect(shared_node.address) as client:
        for number in range(STREAMS):
            client.create(f"s{number}").push(b"first")
            address = client.find_owner(f"s{number}")
            if address is not None:
                with blocking.connect(address) as direct:
                    assert direct.find_owner(f"s{number}") is None
                    assert direct.create(f"s{number}").push(b"second") == 1
        assert {client.find_owner(f"s{number}") is None for number in range(STREAMS)} == {True, False}


def test_one_answer_tells_the_connections_of_all_workers_and_closes_them(shared_node: NodeProcess) -> None:
    """The kernel says who is connected to the node. The connection that asks stays, and so do those between the
    workers: a client reaches every stream through them."""
    with ExitStack() as stack:
        clients = [stack.enter_context(blocking.connect(shared_node.address)) for _ in range(CLIENTS)]
        for client in clients:
            client.create("told").push(bytes(10_000))
        asked = clients[0].session

        def tell() -> ConnectionsResponse:
            return asked.ask(ADDRESS, CONNECTIONS, ConnectionsRequest(0, 1_000))

        # The node may still be closing connections of the tests before.
        wait_for(lambda: {each.peer for each in tell().connections} == peers_of(shared_node))
        found = tell()
        assert found.total == len(found.connections) == CLIENTS
        (party,) = found.parties
        assert (party.party, party.connections) == ("anonymous:127.0.0.1", CLIENTS)
        # The one that asks has sent its questions, too.
        *received, _ = sorted(each.received_bytes for each in found.connections)
        assert all(10_000 < each < 11_000 for each in received)
        fewer = asked.ask(ADDRESS, CONNECTIONS, ConnectionsRequest(0, 2))
        assert (fewer.total, len(fewer.connections)) == (CLIENTS, 2)
        assert asked.ask(ADDRESS, CLOSE, CloseRequest(0, "anonymous:127.0.0.1")).closed == CLIENTS - 1
        wait_for(lambda: len(peers_of(shared_node)) < CLIENTS)
        assert asked.ask(ADDRESS, CLOSE, CloseRequest(0, "token:nobody")).closed == 0
        for number in range(STREAMS):
            clients[0].create(f"s{number}").push(b"x")


def peers_of(node: NodeProcess) -> set[str]:
    """The `host:port` of everybody who is connected to the address of a node, as the kernel tells it."""
    port, found = int(node.address.rpartition(":")[2]), set[str]()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if int(local.partition(":")[2], 16) == port and state == "01":
            found.add(f"127.0.0.1:{int(remote.partition(':')[2], 16)}")
    return found


@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back_with_everything_confirmed(node: NodeProcess) -> None:
    confirmed: dict[str, list[bytes]] = {f"s{number}": [] for number in range(STREAMS)}

    def push_to_all(count: int) -> None:
        while True:
            try:
                with blocking.connect(node.address, reconnect=None, answer_timeout_s=PATIENCE_S) as client:
                    streams = {name: client.create(name) for name in confirmed}
                    for _ in range(count):
                        for name, stream in streams.items():
                            data = b"%d" % time.monotonic_ns()
                            stream.push(data)
                            confirmed[name].append(data)
                return
            except (ConnectionLost, ClientError, OSError):
                time.sleep(0.1)

    push_to_all(5)
    for victim in workers_of(node):
        os.kill(victim, signal.SIGKILL)
        push_to_all(5)
    wait_for(lambda: len(workers_of(node)) == WORKERS)
    with blocking.connect(node.address) as client:
        for name, expected in confirmed.items():
            found = [message.data for message in client.get_stream(name).partitions[0].pull(index=0)]
            # What was in doubt when a worker died may be there as well, in order.
            assert [data for data in found if data in set(expected)] == expected
            assert found == sorted(set(found), key=int)
    died = [line for line in node.log_file.read_text().splitlines() if '"worker_died"' in line]
    assert len(died) == WORKERS
    assert node.stop() == 0


def test_workers_end_with_a_killed_supervisor(node: NodeProcess) -> None:
    workers = workers_of(node)
    assert len(workers) == WORKERS
    node.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_another_number_of_workers_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    """Also a single process on the same directory, and workers on the directory of a single process."""
    assert node.stop() == 0
    for count in ("1", "2"):
        with pytest.raises(NodeNotStarted, match="are shared among 3, not"):
            NodeProcess(tmp_path / "data", arguments=("--workers", count)).start()
    with NodeProcess(tmp_path / "single") as single:
        assert single.stop() == 0
    with pytest.raises(NodeNotStarted, match="are shared among 1, not 2"):
        NodeProcess(tmp_path / "single", arguments=("--workers", "2")).start()
    node.start()


def test_a_wrong_setting_ends_all_workers_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("this is no TOML")
    with pytest.raises(NodeNotStarted):
        NodeProcess(
            tmp_path / "data", arguments=("--workers", "2", "--access-rules", str(tmp_path / "rules.toml"))
        ).start()
    assert "rules.toml" in (tmp_path / "data.log").read_text()


def test_the_block_node_answers_on_every_connection(shared_node: NodeProcess) -> None:
    """One worker has the block node, and the others send its requests there."""
    for _ in range(CLIENTS):
        with blocking.connect(shared_node.address) as client:
            found = client.session.ask("block_status", STATUS, StatusRequest(0, True))
            assert found.next_expected == 0


def test_a_worker_that_stands_still_is_killed_and_started_again(tmp_path: Path) -> None:
    """Goal: a service manager sees progress, and a worker that is frozen does not stay so. Method: a datagram socket in
    place of the manager's; one worker is frozen."""
    name = f"@stream-node-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:])
        manager.settimeout(PATIENCE_S)
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000"}
        with NodeProcess(tmp_path / "data", arguments=("--workers", "2"), environment=environment) as node:
            told = {manager.recv(4096)}
            while told != {b"READY=1", b"WATCHDOG=1"}:
                told.add(manager.recv(4096))
            before = workers_of(node)
            os.kill(before[0], signal.SIGSTOP)
            try:
                # On a machine that starves it, the other worker may be taken for a frozen one, too.
                wait_for(lambda: before[0] not in (now := workers_of(node)) and len(now) == len(before))
            except BaseException:
                # A frozen process does not notice the end of its supervisor.
                os.kill(before[0], signal.SIGKILL)
                raise
            assert '"worker_stuck"' in node.log_file.read_text()
            with blocking.connect(node.address) as client:
                for number in range(STREAMS):
                    assert client.create(f"s{number}").push(b"x") == 0
            assert node.stop() == 0
