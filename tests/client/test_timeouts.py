"""Goal: every way in which a request is made ends at its timeout, also where the node is gone, silent or not to be
reached. Method: a node that is killed or stopped under a client, and a port whose queue of connections is full; a test
that hangs fails by its own deadline.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stream_client import NodeUnreachable, Push, PushesFailed, Reconnect, RequestTimeout, Stream, blocking
from stream_client.shell import async_shell, blocking_shell
from stream_client.shell.base_shell import Backoff
from stream_node.node.process import NodeProcess
from tests.client.shells import ShellName, Tools, run_in

PATIENCE_S = 25.0


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of this test alone, which may be killed or stopped."""
    with NodeProcess(tmp_path / "data") as running:
        yield running


def stop(node: NodeProcess) -> None:
    """The node keeps its connections, takes new ones, and says nothing."""
    os.kill(node.pid, signal.SIGSTOP)


def in_time(run: Callable[[], None]) -> None:
    """Run it in a thread, since a client that waits for ever cannot be stopped from outside."""
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(run).result(PATIENCE_S)
    finally:
        pool.shutdown(wait=False)


@pytest.mark.slow
@pytest.mark.parametrize("lose", [NodeProcess.kill, stop], ids=["gone", "silent"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_the_block_of_a_publisher_ends_at_the_timeout(
    shell: ShellName, lone: NodeProcess, lose: Callable[[NodeProcess], None], idempotent: bool
) -> None:
    async def scenario(tools: Tools) -> None:
        pushes: list[Push] = []

        async def publish(stream: Stream) -> None:
            async with stream.publisher(window=3, idempotent=idempotent) as publisher:
                assert await publisher.wait(await publisher.push(b"stored")) == 0
                lose(lone)
                # The fourth push waits for room in the window, so this also ends a wait inside `push`.
                pushes.extend([await publisher.push(b"lost") for _ in range(4)])
                with pytest.raises(RequestTimeout, match=r"for 2 s"):
                    await publisher.wait(pushes[0])

        async with tools.connect(answer_timeout_s=2.0) as client:
            stream = await client.create("s")
            with pytest.raises(PushesFailed) as caught:
                await publish(stream)
            assert caught.value.in_doubt
            assert all(push.done for push in pushes)

    in_time(lambda: run_in(shell, scenario, lone.address))


def test_a_node_that_becomes_silent_is_given_up(
    shell: ShellName, lone: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`give_up_s` counts from the last byte, and not from the loss of the connection, which comes much later."""
    for module in (async_shell, blocking_shell):
        monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.25)

    async def scenario(tools: Tools) -> None:
        connections = []
        async with tools.connect(answer_timeout_s=None, reconnect=Reconnect(give_up_s=0.5)) as client:
            stream = await client.create("s")
            stop(lone)
            with pytest.raises(NodeUnreachable, match="sends nothing"):
                await stream.push(b"x")
            connections.append(client.statistics().connections)
            # The client goes on: a node that answers again is used at once, over the same connection.
            os.kill(lone.pid, signal.SIGCONT)
            assert await stream.push(b"y") >= 0
            connections.append(client.statistics().connections)
        assert connections == [1, 1]

    in_time(lambda: run_in(shell, scenario, lone.address))


def test_silence_counts_only_while_an_answer_is_due() -> None:
    backoff = Backoff(Reconnect(give_up_s=5.0), lambda: 0.0)
    heard, now_s = 100, 0.0

    def looks(times: int, *, awaits: bool) -> list[bool]:
        nonlocal now_s
        found = []
        for _ in range(times):
            now_s += 2.0
            found.append(backoff.watch(now_s, heard, awaits=awaits))
        return found

    assert looks(100, awaits=False) == [False] * 100
    assert looks(4, awaits=True) == [False, False, False, True]
    heard += 1
    assert looks(1, awaits=True) == [False]
    assert looks(4, awaits=True) == [False, False, False, True]
    assert looks(1, awaits=False) == [False]
    assert looks(4, awaits=True) == [False, False, False, True]


def test_reconnecting_draws_no_number_of_the_program(lone: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a program's seeded numbers stay the same, and Hypothesis sees no other thread draw one. Method: a node that
    is gone, and a client that tries to reach it again."""
    drawn = list[str]()

    def draw() -> float:
        drawn.append("a number")
        return 0.5

    monkeypatch.setattr(random, "random", draw)
    with blocking.connect(lone.address, reconnect=Reconnect(give_up_s=0.5)) as client:
        client.create("s")
        lone.kill()
        with pytest.raises(NodeUnreachable):
            client.create("t")
    assert drawn == []


@contextmanager
def full_port() -> Iterator[str]:
    """An address whose host takes no more connections and refuses none: the first packet of each stays unanswered."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield "{}:{}".format(*listening.getsockname())


def test_connecting_takes_no_longer_than_the_first_answer_may(shell: ShellName) -> None:
    """The wait for a connection is a part of the wait for the first answer: 10 s of it were for nothing."""

    async def scenario(tools: Tools) -> None:
        with pytest.raises(NodeUnreachable, match="in 1 s"):
            async with tools.connect(contact_timeout_s=0.3):
                pass

    with full_port() as address:
        in_time(lambda: run_in(shell, scenario, address))


def test_a_push_from_an_open_pipe_ends_at_its_timeout(lone: NodeProcess) -> None:
    """Method: the input stays open, so only the timeout can end the command."""
    with blocking.connect(lone.address) as client:
        client.create("s")
    command = [sys.executable, "-m", "stream_node", "push", "s", "--node", lone.address, "--timeout", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as pushing:
        assert pushing.stdin is not None
        pushing.stdin.write(b"a\n")
        pushing.stdin.flush()
        with blocking.connect(lone.address) as client:
            assert next(iter(client.create("s").follow())).data == b"a"
        stop(lone)
        try:
            pushing.stdin.write(b"b\n")
            pushing.stdin.flush()
            assert pushing.wait(PATIENCE_S) == 1
        finally:
            pushing.kill()
        assert pushing.stdout is not None
        assert pushing.stderr is not None
        assert "1 message for s/0 unknown" in pushing.stdout.read().decode()
        (line,) = pushing.stderr.read().decode().splitlines()
    assert "has not answered for 1 s" in line
