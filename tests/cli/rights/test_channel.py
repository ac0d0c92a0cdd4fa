"""Goal: commands go through a secure channel by options, variables and contexts. Method: a real node, real commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine, completed
from tests.cli.promised import promised

MINE = "mine.json"


@pytest.fixture
def node(command: CommandLine, tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that trusts the identity in the file MINE, and nobody else."""
    mine = command("identity", "create", "--file", tmp_path / MINE, "--json").read(promised.IdentityShown)
    command("trust", "add", mine.identifier, "--data-dir", tmp_path / "data")
    with NodeProcess(tmp_path / "data") as running:
        yield running


def test_commands_through_a_channel(
    command: CommandLine, node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The node has made its identity when it started, since it trusts somebody.
    peer = (
        command("identity", "show", "--data-dir", tmp_path / "data", "--json").read(promised.IdentityShown).identifier
    )
    channel = ("--node", node.address, "--peer", peer, "--identity", tmp_path / MINE)
    assert command("push", "s", *channel, "--json", stdin=b"hello\n").read(promised.Pushed).pushed == 1
    assert b"hello" in command("pull", "s", *channel).stdout
    assert completed(node, tmp_path, "pull", *map(str, channel[2:]), "s") == ["s"]
    assert command("block", "status", *channel, "--json").code == 0
    # Without the identity that the node trusts, the error says what to do there.
    stranger = command("identity", "create", "--json").read(promised.IdentityShown)
    refused = command("push", "s", "--node", node.address, "--peer", peer).failed(1)
    assert f"`stream-node trust add {stranger.identifier}`" in refused
    # Another node than the expected one gets nothing.
    wrong = command("push", "s", *channel[:3], "I" + "0" * 64, *channel[4:]).failed(1)
    assert f"the other end is {peer}" in wrong
    # By variables, and by a context.
    monkeypatch.setenv("STREAM_NODE_PEER", peer)
    monkeypatch.setenv("STREAM_NODE_IDENTITY", str(tmp_path / MINE))
    assert command("push", "s", "--node", node.address, "--json", stdin=b"x\n").read(promised.Pushed).pushed == 1
    monkeypatch.delenv("STREAM_NODE_PEER")
    monkeypatch.delenv("STREAM_NODE_IDENTITY")
    options = ("--peer", peer, "--identity", tmp_path / MINE, "--json")
    added = command("context", "add", "far", node.address, *options).read(promised.ContextAdded)
    assert (added.peer, added.identity) == (peer, str(tmp_path / MINE))
    assert command("context", "list").text == f"*  far  {node.address} secure channel\n"
    assert command("push", "s", "--json", stdin=b"x\n").read(promised.Pushed).pushed == 1


def test_the_listener_of_a_channel_is_named_by_an_option_and_by_a_context(
    command: CommandLine, node: NodeProcess, tmp_path: Path
) -> None:
    """Method: a name at which nobody listens, which the error names, and the second one of our nodes."""
    peer = (
        command("identity", "show", "--data-dir", tmp_path / "data", "--json").read(promised.IdentityShown).identifier
    )
    channel = ("--peer", peer, "--identity", tmp_path / MINE, "--timeout", "1")
    told = command("push", "s", "--node", node.address, *channel, "--channel-listener", "nowhere", stdin=b"x\n").failed(
        3
    )
    assert "no secure channel at nowhere: nobody answers there" in told
    options = (*channel[:4], "--channel-listener", "nowhere", "--json")
    assert (
        command("context", "add", "rust", node.address, *options).read(promised.ContextAdded).channel_listener
        == "nowhere"
    )
    assert "no secure channel at nowhere" in command("push", "s", "--timeout", "1", stdin=b"x\n").failed(3)
    usual = command("push", "s", "--channel-listener", "api", "--json", stdin=b"x\n").read(promised.Pushed)
    assert usual.pushed == 1
    lone = ("--node", node.address, "--channel-listener", "nowhere")
    assert "--channel-listener needs --peer" in command("push", "s", *lone).failed(2)


def test_wrong_uses(command: CommandLine, tmp_path: Path) -> None:
    assert "--identity needs --peer" in command("push", "s", "--identity", tmp_path / MINE).failed(2)
    assert "no identifier" in command("push", "s", "--peer", "alice").failed(2)
    assert "no identifier" in command("context", "add", "x", "a:1", "--peer", "alice").failed(2)
    missing = command("push", "s", "--peer", "I" + "0" * 64, "--identity", tmp_path / "none").failed(2)
    assert "`identity create` makes one" in missing
