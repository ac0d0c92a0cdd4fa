"""Goal: a command says what is at an address that is no stream node, and that a node is gone or back. Method: the
command line against servers of other protocols, a node that passes nothing on, and a node that is started again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_client.shell import async_shell as async_client
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.client.sockets import listener
from tests.support import strangers
from tests.support.command import Command

COMMANDS = [
    ("push", "x", "--data", "a"),
    ("pull", "x"),
    ("tail", "x"),
    ("consume", "x", "--client", "me", "--follow"),
    ("stream", "list"),
    ("stream", "delete", "x", "--dry-run"),
    ("index", "get", "x", "--client", "me"),
    ("block", "status"),
    ("block", "backfill", "status"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_client, "PROBE_AFTER_S", 0.05)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda each: " ".join(each[:2]))
def test_every_command_says_what_is_there(command: CommandLine, arguments: tuple[str, ...]) -> None:
    with strangers.answering(strangers.redis) as address:
        line = command(*arguments, "--node", address).failed(3)
    assert line == f"stream-node: {address} is no stream node: it answered as Redis does"


@pytest.mark.parametrize("serve", [strangers.redis, strangers.ends_at_once])
@pytest.mark.parametrize("arguments", [("tail", "x"), ("consume", "x", "--client", "me", "--follow")])
def test_what_was_never_there_is_not_told_to_be_gone(
    command: CommandLine, serve: Callable[..., None], arguments: tuple[str, ...]
) -> None:
    """One line, why the command ends; none that says that it waits."""
    with strangers.answering(serve) as address:
        line = command(*arguments, "--node", address, "--timeout", "0.3").failed(3)
    assert line.startswith(f"stream-node: {address} ")
    assert "is gone" not in line


@pytest.mark.parametrize("serve", [strangers.silent, strangers.ends_at_once])
def test_a_port_that_says_nothing_is_told_without_the_long_wait(
    command: CommandLine, serve: Callable[..., None]
) -> None:
    with strangers.answering(serve) as address:
        line = command("pull", "x", "--node", address, "--timeout", "0.2").failed(3)
    assert f"{address} takes connections and" in line


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda each: " ".join(each[:2]))
def test_a_way_that_is_not_allowed_is_told(at_node: CommandLine, arguments: tuple[str, ...]) -> None:
    line = at_node(*arguments, "--via", "10.0.0.1:4000").failed(3)
    assert line == "stream-node: not passed on: 10.0.0.1:4000 is no destination that this node allows"


def test_a_node_behind_that_is_not_there_is_told(command: CommandLine, tmp_path: Path) -> None:
    with listener() as (address, listening):
        listening.close()
        with NodeProcess(tmp_path / "door", arguments=("--allow-forward", address)) as door:
            line = command("pull", "x", "--node", door.address, "--via", address, "--timeout", "0.5").failed(3)
    assert line.startswith(f"stream-node: no way to {address}: cannot reach {address}")


def test_an_answer_that_does_not_come_is_waited_for_as_long_as_said(command: CommandLine) -> None:
    """The service says that it is there, and nothing more."""
    with strangers.answering(strangers.greets_and_refuses_once) as address:
        line = command("pull", "x", "--node", address, "--timeout", "0.3").failed(1)
    assert "has not answered for 0.3 s" in line


@pytest.mark.parametrize("arguments", [("status",), ("drain", "db1")], ids=["status", "drain"])
def test_a_node_in_no_cluster_is_told(
    at_node: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Claim: who asks a lone node about its cluster learns what to look at. Method: a short wait for answers, and a
    node that has no such service."""
    monkeypatch.setattr("stream_client.shell.base_shell.ANSWER_TIMEOUT_S", 0.3)
    assert at_node("cluster", *arguments).failed(1).endswith("is it a member of a cluster (`serve --cluster`)?")


@pytest.mark.slow
@pytest.mark.parametrize("through_a_door", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_commands_that_wait_say_that_the_node_is_gone_and_back(tmp_path: Path, through_a_door: bool) -> None:
    """Once each, however often connecting has failed meanwhile."""
    command = Command(tmp_path)
    with NodeProcess(tmp_path / "store") as store:
        arguments = ("--allow-forward", store.address)
        with NodeProcess(tmp_path / "door", arguments=arguments) as door:
            way = ["--node", door.address, "--via", store.address] if through_a_door else ["--node", store.address]
            assert command("push", "x", "--data", "one", *way).code == 0
            tail = command.start("tail", "x", *way)
            consume = command.start("consume", "x", "--client", "me", "--follow", *way)
            with tail, consume:
                try:
                    for process in (tail, consume):
                        assert _line(process.stdout) == "one"
                    store.kill()
                    for process in (tail, consume):
                        assert _line(process.stderr).startswith(f"stream-node: {store.address} is gone (")
                    store.start()
                    for process in (tail, consume):
                        assert _line(process.stderr) == f"stream-node: {store.address} is back"
                    assert command("push", "x", "--data", "two", *way).code == 0
                    for process in (tail, consume):
                        assert _line(process.stdout) == "two"
                finally:
                    tail.kill()
                    consume.kill()


def _line(pipe: object) -> str:
    """The next line; a command that says nothing fails the test instead of holding it up."""
    lines: list[bytes] = []
    reading = threading.Thread(target=lambda: lines.append(pipe.readline()), daemon=True)  # type: ignore[attr-defined]
    reading.start()
    reading.join(60)
    assert lines, "no line came"
    return lines[0].decode().rstrip("\n")
