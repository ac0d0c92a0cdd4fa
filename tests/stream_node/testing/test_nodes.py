"""Nodes inside a program: their start and end, their log, their errors, and what they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog
import trio

from stream_client import ConnectionLost, Framing, NodeUnreachable, blocking, connect
from stream_node.testing import HostedNode, NodeNotRunning, NodeNotStarted, memory_node, node
from stream_storage.sqlite import in_memory
from tests.style.tree import ROOT

EACH_KIND = pytest.mark.parametrize("make", [memory_node, node])


@EACH_KIND
@pytest.mark.parametrize("run", [trio.run, asyncio.run])
def test_an_async_block_runs_a_node(make: Callable[[], HostedNode], run: Callable[..., object]) -> None:
    """Claim: `async with` works in trio and asyncio, also if the block is cancelled. Method: push in a block that its
    own cancellation ends; then nobody answers at the address."""
    addresses: list[str] = []

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with make() as running, connect(running.address) as client:
                addresses.append(running.address)
                assert await (await client.create("orders")).push(b"x") == 0
                scope.cancel()
                await anyio.sleep_forever()

    run(main) if run is trio.run else run(main())
    with pytest.raises(NodeUnreachable), blocking.connect(addresses[0]):
        pass


@EACH_KIND
def test_a_block_inside_an_event_loop_may_be_a_plain_one(make: Callable[[], HostedNode]) -> None:
    """Claim: `with` works in a task of trio, which the node does not need. Method: push there."""

    async def main() -> int:
        with make() as running:
            async with connect(running.address) as client:
                return await (await client.create("orders")).push(b"x")

    assert trio.run(main) == 0


def test_nodes_stand_beside_each_other() -> None:
    """Claim: nodes share nothing. Method: the same name in four nodes, with a different message in each."""
    with memory_node() as one, memory_node() as two, node() as three, node() as four:
        for place, each in enumerate((one, two, three, four)):
            with blocking.connect(each.address) as client:
                assert client.create("orders").push(b"%d" % place) == 0
        for place, each in enumerate((one, two, three, four)):
            with blocking.connect(each.address) as client:
                assert [message.data for message in client.create("orders").pull()] == [b"%d" % place]


@pytest.mark.parametrize("framing", ["head", "legacy", "auto"])
def test_every_framing_goes_through_memory(framing: Framing) -> None:
    """Claim: a connection in memory carries any bytes, both ways. Method: both clients, with each framing."""

    async def main(address: str) -> list[bytes]:
        async with connect(address, framing=framing) as client:
            return [message.data for message in await (await client.create("orders")).pull()]

    with memory_node() as running:
        with blocking.connect(running.address, framing=framing) as client:
            client.create("orders").push(b"x" * 50_000)
        assert trio.run(main, running.address) == [b"x" * 50_000]


@EACH_KIND
def test_a_client_notices_the_end_of_its_node(make: Callable[[], HostedNode]) -> None:
    """Claim: a client of a node that ends gets the same typed error from both kinds. Method: the node ends first."""
    running = make().__enter__()
    with blocking.connect(running.address, reconnect=None) as client:
        orders = client.create("orders")
        running.__exit__(None, None, None)
        with pytest.raises(ConnectionLost):
            orders.push(b"x")


@EACH_KIND
def test_an_address_is_for_the_block_only(make: Callable[[], HostedNode]) -> None:
    """Claim: wrong use says so. Method: ask for the address before and after the block; enter it twice."""
    running = make()
    with pytest.raises(NodeNotRunning, match="inside the block"):
        _ = running.address
    with running, pytest.raises(NodeNotRunning, match="make another node"), running:
        pass
    with pytest.raises(NodeNotRunning, match="inside the block"):
        _ = running.address


def test_a_node_that_cannot_start_says_why() -> None:
    """Claim: the error has the reason. Method: an address that is in use, and settings that do not exist."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NodeNotStarted, match=f"cannot listen at {at}"), node(listen=at):
            pass
    with pytest.raises(NodeNotStarted, match="there is 'retention_messages'"), node(retention_message=1):
        pass


async def fail(running: HostedNode, listens: bool) -> None:
    """Serves as a node that logs a line, and fails while its block runs or before it listens."""
    structlog.get_logger().warning("odd_sound", of="the disk")
    if listens:
        running.listens("nowhere:1")
        await running.stopping.wait()
    raise OSError("it broke")


@pytest.mark.parametrize(("listens", "error"), [(False, NodeNotStarted), (True, NodeNotRunning)])
def test_a_failure_comes_with_the_log(listens: bool, error: type[Exception]) -> None:
    """Claim: a node that fails says why, and what it logged; others go on. Method: one that fails, beside another."""
    with memory_node() as other:
        expected = r"it broke\nits log:\nwarning: event='odd_sound' of='the disk'"
        with pytest.raises(error, match=expected), HostedNode(partial(fail, listens=listens)):
            pass
        with blocking.connect(other.address) as client:
            assert client.create("orders").push(b"x") == 0


@EACH_KIND
def test_the_log_is_apart_from_that_of_the_program(
    make: Callable[[], HostedNode], capsys: pytest.CaptureFixture[str]
) -> None:
    """Claim: a node's lines are in its `log` only, and the program's lines where the program wants them. Method: both
    log, with the defaults of structlog, which print."""
    structlog.reset_defaults()
    with make() as running, blocking.connect(running.address) as client:
        client.create("orders")
        structlog.get_logger().info("mine")
    assert "event='stream_created'" in running.log
    assert not structlog.is_configured()
    (line,) = capsys.readouterr().out.splitlines()
    assert "mine" in line


def test_data_stays_in_a_directory_of_the_program(tmp_path: Path) -> None:
    """Claim: with `data_dir`, the next node goes on. Method: push to one, read from the next at the same address."""
    with node(data_dir=str(tmp_path / "data")) as first, blocking.connect(first.address) as client:
        address = first.address
        client.create("orders").push(b"kept")
    with node(data_dir=str(tmp_path / "data"), listen=address), blocking.connect(address) as client:
        assert [message.data for message in client.create("orders").pull()] == [b"kept"]


def run_program(text: str, *arguments: str, timeout_s: float = 100) -> str:
    """Runs a program in an interpreter of its own. It must succeed, and print what this returns."""
    command = [sys.executable, "-W", "error", "-c", text, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_node_in_memory_opens_no_file_and_no_socket() -> None:
    """Claim: "without disk and sockets". Method: Python reports each file, socket, folder and database that is opened
    (audit events), after a first node has imported everything and started its thread."""
    text = """
import sys
from stream_client import blocking
from stream_node.testing import memory_node

def use():
    with memory_node() as running, blocking.connect(running.address) as client:
        stream = client.create_partitioned("orders", 2)
        stream.push(b"x", key=b"k")
        with stream.shared_consumer("billing") as member:
            next(iter(member))

use()
seen = []
def note(event, arguments):
    files_and_sockets = "open", "os.mkdir", "socket.__new__", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"
    if event in files_and_sockets or (event == "sqlite3.connect" and arguments != (":memory:",)):
        seen.append((event, arguments))
sys.addaudithook(note)
use()
print(seen)
open("/dev/null").close()
assert seen, "the hook sees nothing"
"""
    assert run_program(text).strip() == "[]"


@pytest.mark.parametrize("make", ["memory_node", "node"])
def test_a_program_may_end_inside_the_block(make: str, tmp_path: Path) -> None:
    """Claim: an open node does not keep its program from ending, and leaves no folder. Method: one that leaves."""
    text = f"""
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from stream_node.testing import {make}
running = {make}().__enter__()
print(running.address)
"""
    assert ":" in run_program(text, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", ["memory_node", "node"])
def test_no_process_is_left_behind_by_a_kill(make: str) -> None:
    """Claim: what ran for a test that is killed is gone. Method: kill a program in its block; its group is empty, and
    nobody answers at the address."""
    text = f"""
from stream_node.testing import {make}
with {make}() as running:
    print(running.address, flush=True)
    import signal
    signal.pause()
"""
    program = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert program.stdout is not None
    with program.stdout:
        address = program.stdout.readline().strip()
        program.kill()
        assert program.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.killpg(program.pid, 0)
    with pytest.raises(NodeUnreachable), blocking.connect(address):
        pass


def test_a_database_in_memory_that_is_used_again_is_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: the database of a node in memory, which the next node gets, has nothing of the first. Method: a node with
    streams, positions and groups; SQLite's own dump of its database afterwards, and of a new one."""
    monkeypatch.setattr(in_memory, "_emptied", [])
    new = "".join(in_memory.open_in_memory().connection.iterdump())
    with memory_node() as running, blocking.connect(running.address) as client:
        orders = client.create("orders")
        orders.push(b"x", key=b"k", headers={"a": "b"})
        with orders.consumer("billing") as consumer:
            next(iter(consumer))
        shared = client.create_partitioned("shared", 2)
        shared.push(b"x", key=b"k")
        with shared.shared_consumer("group") as member:
            next(iter(member))
    (connection,) = in_memory._emptied
    assert "".join(connection.iterdump()) == new
    assert in_memory.open_in_memory().connection is connection


def test_a_database_in_memory_that_has_grown_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: a test with much data does not keep its memory for the tests after it. Method: a node with 8 MB."""
    monkeypatch.setattr(in_memory, "_emptied", [])
    with memory_node() as running, blocking.connect(running.address) as client:
        orders = client.create("orders")
        for _ in range(8):
            orders.push(bytes(1_000_000))
    assert in_memory._emptied == []


@pytest.mark.slow
def test_a_fork_has_nodes_of_its_own() -> None:
    """Claim: a child of `os.fork`, which has no thread of its parent, starts its own. Method: both push."""
    text = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from stream_client import blocking
from stream_node.testing import memory_node

def use():
    with memory_node() as running, blocking.connect(running.address) as client:
        assert client.create("orders").push(b"x") == 0

use()
child = os.fork()
use()
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert run_program(text).strip() == "0"
