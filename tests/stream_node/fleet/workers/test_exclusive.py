"""Goal: no two nodes share an address or a data directory when one of them has several workers.

Method: the real command twice; clients on many connections; a supervisor is killed and started again at once.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stream_client import blocking
from stream_node.fleet.supervisor import listen_together
from stream_node.node.process import NodeNotStarted, NodeProcess

TWO = ("--workers", "2")
CONNECTIONS = 12
STREAMS = 6
ANY = ("--insecure",)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "first", arguments=TWO) as node:
        yield node


def port_of(node: NodeProcess) -> str:
    return node.address.rpartition(":")[2]


def test_no_second_node_listens_at_the_address_of_workers(node: NodeProcess, tmp_path: Path) -> None:
    """One process and two, at the same address and at every address."""
    pushed = 0
    for host, arguments in (("127.0.0.1", TWO), ("0.0.0.0", (*TWO, *ANY)), ("127.0.0.1", ()), ("0.0.0.0", ANY)):
        second = NodeProcess(tmp_path / f"second{pushed}", listen=f"{host}:{port_of(node)}", arguments=arguments)
        refused = r"ended with 1: .*cannot listen at .*in use by another program"
        with pytest.raises(NodeNotStarted, match=refused), second:
            pass
        assert "Traceback" not in second.log_file.read_text()
        # All connections still reach the first node.
        for _ in range(CONNECTIONS):
            with blocking.connect(node.address) as client:
                assert client.create("s").push(b"x") == pushed
            pushed += 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_workers_do_not_listen_at_the_address_of_another_node(tmp_path: Path, host: str) -> None:
    first = NodeProcess(tmp_path / "first", listen=f"{host}:0", arguments=ANY)
    with first:
        second = NodeProcess(tmp_path / "second", listen=f"127.0.0.1:{port_of(first)}", arguments=TWO)
        with pytest.raises(NodeNotStarted, match="in use by another program"), second:
            pass


def test_workers_at_every_address_keep_those_at_one_address_out(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "first", listen="0.0.0.0:0", arguments=(*TWO, *ANY)) as first:
        second = NodeProcess(tmp_path / "second", listen=f"127.0.0.1:{port_of(first)}", arguments=TWO)
        with pytest.raises(NodeNotStarted, match="in use by another program"), second:
            pass


def test_the_data_directory_is_refused_before_anything_listens(node: NodeProcess, tmp_path: Path) -> None:
    """The second start is refused for the directory, though its address does not exist on this machine."""
    second = NodeProcess(tmp_path / "first", listen="192.0.2.1:4000", arguments=(*TWO, *ANY), log_file=tmp_path / "log")
    with pytest.raises(NodeNotStarted, match=rf"ended with 1: .*in use by process {node.pid}; stop it"), second:
        pass


def test_a_second_start_on_the_same_directory_takes_no_connection(node: NodeProcess, tmp_path: Path) -> None:
    second = NodeProcess(tmp_path / "first", listen=node.address, arguments=TWO)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(second.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
    pushed = 0
    while process.poll() is None:
        with blocking.connect(node.address, reconnect=None) as client:
            for number in range(STREAMS):
                assert client.create(f"s{number}").push(b"x") == pushed
        pushed += 1
    output, _ = process.communicate()
    assert (process.returncode, output) == (1, b"")
    assert (tmp_path / "log").read_text().count("\n") == 1
    assert node.stop() == 0


def test_a_killed_supervisor_is_started_again_at_once(node: NodeProcess) -> None:
    """The workers of the killed one may still drain: the new one waits for them, at the same address and directory."""
    for number in range(2):
        with blocking.connect(node.address) as client:
            for name in range(STREAMS):
                assert client.create(f"s{name}").push(b"x") == number
            node.kill()
            node.start()
    assert node.stop() == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [("::1", "::1"), ("::", "::1"), ("::1", "::"), ("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "0.0.0.0")],
)
@pytest.mark.parametrize("left", [0, 1])
def test_sockets_that_share_an_address_keep_others_out(first: str, second: str, left: int) -> None:
    """left: the one of the sockets that is still open when another supervisor comes."""
    try:
        # Where IPv6 is switched off, `::` can still be listened at.
        listen_together(second, 0, 1)[0].close()
        shared = listen_together(first, 0, 2)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = shared[left].getsockname()[1]
    with shared[left]:
        shared[1 - left].close()
        for count in (1, 2):
            with pytest.raises(OSError, match="in use"):
                listen_together(second, port, count)
    for each in listen_together(second, port, 2):
        each.close()


def test_connections_are_shared_among_the_sockets() -> None:
    shared = listen_together("127.0.0.1", 0, 2)
    with ExitStack() as stack:
        for each in shared:
            stack.enter_context(each)
        for _ in range(CONNECTIONS * 4):
            stack.enter_context(socket.create_connection(shared[0].getsockname()))
        for each in shared:
            connection, _ = each.accept()
            connection.close()
