"""Goal: on a node with several processes, a worker of the operator runs in one of them and answers from every one.

Method: the real command with three processes, and clients on connections that reach different ones; the process of the
worker is killed; the status tells where it runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_client import ClientError, blocking
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.stream_node.fleet.workers.test_workers import wait_for, workers_of
from tests.style.tree import ROOT

SAMPLES = "tests.stream_node.hosting.sample_workers"
CLIENTS = 12
"""So many connections reach all three processes, but for one time in forty."""

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    arguments = ["--workers", "3", "--worker", f"{SAMPLES}:Process@process", "--worker", f"{SAMPLES}:Pusher@pusher"]
    with NodeProcess(tmp_path / "data", arguments=arguments, environment={"PYTHONPATH": str(ROOT)}) as process:
        yield process


def asked(node: NodeProcess, address: str) -> bytes:
    """The answer of the worker over a new connection, which any process may get; nothing without an answer."""
    try:
        with blocking.connect(node.address, reconnect=None) as client:
            conversation = client.converse(address)
            conversation.send(b"hello")
            return conversation.receive() or b""
    except ClientError:
        return b""


def test_a_worker_answers_from_every_process_also_after_its_own_was_killed(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command = CommandLine(monkeypatch, capfdbinary)
    (home,) = {int(asked(node, "process")) for _ in range(CLIENTS)}
    assert home in workers_of(node)
    told = command("status", "--node", node.address, "--json").read(promised.NodeStatus)
    assert sorted((each.address, each.state) for each in told.own_workers) == [
        ("process", "running"),
        ("pusher", "running"),
    ]
    assert {each.process for each in told.own_workers} <= {"w00", "w01", "w02"}
    os.kill(home, signal.SIGKILL)
    wait_for(lambda: asked(node, "process") not in (b"", b"%d" % home))
    assert len({asked(node, "process") for _ in range(CLIENTS)} - {b""}) == 1


def test_a_worker_uses_streams_of_every_process(node: NodeProcess) -> None:
    assert asked(node, "pusher").startswith(b"0 at ")
    with blocking.connect(node.address) as client:
        assert [message.data for message in client.create("orders").pull()] == [b"hello"]
