"""Goal: `mirror add|status|promote|remove` do what they say, in words and in JSON. Method: two nodes in processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised


@pytest.fixture
def source(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "source", arguments=("--log-level", "error")) as node:
        yield node


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "mirror", arguments=("--log-level", "error")) as node:
        yield node


def push(node: NodeProcess, count: int) -> None:
    with blocking.connect(node.address) as client:
        stream = client.create("orders")
        for number in range(count):
            stream.push(b"%d" % number)


def wait_listed(command: CommandLine, node: NodeProcess, condition: str, next_index: int | None = None) -> Any:
    deadline_s = time.monotonic() + 30
    while True:
        rows = command("mirror", "status", "orders", "--json", "--node", node.address)
        found = [row for row in rows.read_lines(promised.MirrorListed) if row.condition == condition]
        if found and next_index in (None, found[0].next_index):
            return found[0]
        assert time.monotonic() < deadline_s, rows
        time.sleep(0.05)


def test_a_mirror_is_added_promoted_as_planned_and_removed(
    command: CommandLine, source: NodeProcess, mirror: NodeProcess
) -> None:
    push(source, 20)
    at = ("--node", mirror.address)
    added = command("mirror", "add", "orders", "--from", source.address, "--json", *at).read(promised.MirrorAdded)
    assert added == promised.MirrorAdded("orders", source.address, 1)
    row = wait_listed(command, mirror, "following", 20)
    assert (row.source, row.lag, row.lag_s, row.aside) == (source.address, 0, 0.0, None)
    listed = command("mirror", "status", *at).text.splitlines()
    assert listed[0].split()[:3] == ["stream", "partition", "condition"]
    assert listed[1].split()[:4] == ["orders", "0", "following", source.address]
    refused = command("push", "orders", *at, stdin=b"no\n")
    assert refused.code == 1
    assert f"'orders' is a mirror of 'orders' at {source.address}" in refused.stderr
    promoted = command("mirror", "promote", "orders", "--json", *at).read(promised.MirrorPromoted)
    assert promoted == promised.MirrorPromoted("orders", 1, False, 0, None)
    assert command("push", "orders", *at, stdin=b"yes\n").code == 0
    row = wait_listed(command, source, "following", 21)
    assert row.source == mirror.address
    removed = command("mirror", "remove", "orders", "--json", "--node", source.address).read(promised.MirrorRemoved)
    assert removed == promised.MirrorRemoved("orders", 1)
    assert command("mirror", "status", "--node", source.address).text == "no mirrors\n"


def test_a_promotion_by_force_says_what_may_be_lost(
    command: CommandLine, source: NodeProcess, mirror: NodeProcess
) -> None:
    push(source, 5)
    at = ("--node", mirror.address)
    command("mirror", "add", "orders", "--from", source.address, *at)
    wait_listed(command, mirror, "following", 5)
    source.kill()
    wait_listed(command, mirror, "unreachable")
    assert "cannot be reached" in command("mirror", "promote", "orders", *at).failed(1)
    done = command("mirror", "promote", "orders", "--force", *at)
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("orders takes pushes here now, in 1 partition; it was 0 messages behind when")
    assert "confirmed since 20" in done.text
    assert wait_listed(command, mirror, "fencing").source == source.address
    assert "needs --force" in command("mirror", "promote", "orders", "--source-goes-on", *at).failed(2)


def test_what_is_no_mirror_is_said(command: CommandLine, mirror: NodeProcess) -> None:
    at = ("--node", mirror.address)
    for verb in ("promote", "remove"):
        assert "'orders' is no mirror on this node" in command("mirror", verb, "orders", *at).failed(1)
    assert "no mirrors" in command("mirror", "status", *at).text
    assert "cannot be reached" in command("mirror", "add", "orders", "--from", "127.0.0.1:9", *at).failed(1)
    assert "is not HOST:PORT" in command("mirror", "add", "orders", "--from", "http://x", *at).failed(2)
