"""`stream-node bench`: every load, on a running node and on one of its own. Its figures are this machine's."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stream_client import RequestRefused, Stream, blocking
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised

LOADS = {
    "push": (("--messages", 300, "--window", 50, "--publishers", 2), 300),
    "pull": (("--messages", 300, "--page", 50, "--readers", 2), 600),
    "latency": (("--messages", 31, "--publishers", 2), 31),
    "fanout": (("--messages", 50, "--consumers", 3), 150),
}
"""The arguments of a small run of each work, and the messages that it counts."""


def _bench_messages(node: NodeProcess) -> int:
    with blocking.connect(node.address) as client:
        return sum(info.next_index for info in client.list_streams() if info.stream_name.startswith("bench-"))


def _bench_streams(node: NodeProcess) -> list[str]:
    with blocking.connect(node.address) as client:
        return [info.stream_name for info in client.list_streams() if info.stream_name.startswith("bench-")]


@pytest.mark.parametrize("work", LOADS)
def test_a_run_reports_and_leaves_no_stream(at_node: CommandLine, node: NodeProcess, work: str) -> None:
    arguments, messages = LOADS[work]
    result = at_node("bench", work, *arguments, "--json").read(promised.Benched)
    assert (result.node, result.work, result.messages, result.size_bytes) == (node.address, work, messages, 100)
    assert result.messages_per_second == pytest.approx(messages / result.seconds)
    assert result.bytes_per_second == pytest.approx(100 * result.messages_per_second)
    times = result.latency_us
    assert 0 < times.p50 <= times.p90 <= times.p99 <= times.p999 <= times.max
    assert 0 < times.timed <= messages
    assert _bench_streams(node) == []


@pytest.mark.parametrize("work", LOADS)
def test_a_run_shows_a_table(at_node: CommandLine, node: NodeProcess, work: str) -> None:
    arguments, messages = LOADS[work]
    about, head, figures = at_node("bench", work, *arguments).text.splitlines()
    assert about.startswith(f"{work}, {messages} ")
    assert about.endswith(f": {node.address}")
    assert head.split() == ["messages/s", "MB/s", "seconds", "p50", "p90", "p99", "p99.9", "max"]
    assert len(re.findall(r"[\d,.]+(?: (?:µs|ms|s))?", figures)) == 8


def test_every_push_of_a_run_is_stored(
    at_node: CommandLine, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the figures are of work that was done. Method: keep the stream; it holds what each publisher pushed."""

    async def refuse(stream: Stream) -> int:
        raise RequestRefused("not allowed")

    monkeypatch.setattr(Stream, "delete", refuse)
    done = at_node("bench", "push", "--messages", 301, "--size", 7, "--publishers", 2)
    assert done.code == 0
    (name,) = _bench_streams(node)
    assert f"the stream {name} is still on the node (not allowed)" in done.stderr
    monkeypatch.undo()
    with blocking.connect(node.address) as client:
        stream = client.create(name)
        assert [len(message.data) for message in stream.pull(0, 1_000)] == [7] * 301
        stream.delete()


def test_without_a_node_one_is_started_for_the_run(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("bench", "latency", "--messages", 5, "--json").read(promised.Benched).node is None
    assert "a node for this run" in command("bench", "latency", "--messages", 5).text
    assert list(tmp_path.iterdir()) == []


def test_the_context_in_use_is_measured(command: CommandLine, node: NodeProcess) -> None:
    assert command("context", "add", "here", node.address).code == 0
    assert command("bench", "latency", "--messages", 5, "--json").read(promised.Benched).node == node.address


def test_what_cannot_be_measured_is_told(command: CommandLine, at_node: CommandLine, node: NodeProcess) -> None:
    assert "cannot reach a node" in command("bench", "push", "--node", "127.0.0.1:1").failed(3)
    assert command("bench", "fanout", "--size", 7).code == 2
    assert command("bench", "push", "--publishers", 0).code == 2
    assert command("bench").code == 2
    assert command("bench", "push", "--size", 2**25, "--messages", 1).code == 1
    assert _bench_streams(node) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_told_to_end_leaves_nothing(
    node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Goal: no stream, no file and no stack trace is left. Method: signals in a run that would take minutes."""
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "stream_node", "bench", "push", "--messages", "100000000", "--node", node.address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as bench:
        deadline_s = time.monotonic() + 60
        while not _bench_messages(node):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        bench.send_signal(number)
        _, said = bench.communicate(timeout=60)
    assert (bench.returncode, said) == (128 + number, "")
    assert _bench_streams(node) == []
    assert list(tmp_path.iterdir()) == []
