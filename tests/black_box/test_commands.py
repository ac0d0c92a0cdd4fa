"""Goal: the stream commands do what their help says, answer in JSON where asked, and end with the promised exit code.

Method: the installed command against one running node, for what needs a process: its pipes, its signals, its exit code;
what a command does otherwise is in tests/cli. The help of every command by walking through them all.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import typer.main

from stream_node.cli.app import build, run
from stream_node.node.process import NodeProcess
from tests.support.command import Command
from tests.support.served import PATIENCE_S
from tests.support.stream_peer import stream_peer


@pytest.fixture
def here(node: NodeProcess) -> tuple[str, str]:
    """The flags that lead to the node."""
    return "--node", node.address


@pytest.mark.slow
def test_push_pull_and_consume_round_trip(command: Command, here: tuple[str, str], tmp_path: Path) -> None:
    """From files and from standard input, line feeds taken off; in text, and in JSON with one object a line."""
    (tmp_path / "a").write_bytes(b"first\nsecond\r\n")
    (tmp_path / "b").write_bytes("\nfünf".encode())
    pushed = command("push", "round", tmp_path / "a", tmp_path / "b", *here, "--json")
    assert (pushed.code, pushed.err) == (0, "")
    report = pushed.row
    assert report.pop("seconds") >= 0
    assert (report.pop("not_stored"), report.pop("unknown")) == ([], [])
    assert report == {"stream": "round", "partition": 0, "pushed": 4, "failed": 0, "first_index": 0, "last_index": 3}
    said = command("push", "round", *here, standard_input=b"\xff\xfe\n")
    assert (said.code, said.text.partition(" (")[0]) == (0, "1 message in round/0 at 4")

    lines = [b"first", b"second\r", b"", "fünf".encode(), b"\xff\xfe"]
    pulled = command("pull", "round", environment={"STREAM_NODE_ADDRESS": here[1]})
    assert (pulled.code, pulled.out) == (0, b"".join(line + b"\n" for line in lines))
    rows = [{"partition": 0, "index": index, "data": line.decode()} for index, line in enumerate(lines[:4])]
    rows.append({"partition": 0, "index": 4, "data_base64": base64.b64encode(lines[4]).decode()})
    consumed = command("consume", "round", "--client", "c1", "--json", *here)
    assert (consumed.code, consumed.rows) == (0, rows)
    assert command("consume", "round", "--client", "c1", *here).out == b""


def test_what_is_pushed_from_a_pipe_is_stored_as_it_comes(command: Command, here: tuple[str, str]) -> None:
    """Goal: `journalctl --follow | stream-node push` stores each line at once, and Ctrl-C says what it stored.

    Method: a pipe that stays open; each line is written once the one before it can be pulled.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    with command.start("push", "live", *here, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for count in (1, 2, 3):
            process.stdin.write(b"%d\n" % count)
            process.stdin.flush()
            while command("pull", "live", *here).out.count(b"\n") < count:
                assert time.monotonic() < deadline_s
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        said = process.stdout.read()
    assert (process.returncode, said.startswith(b"3 messages in live/0 at 0 to 2 ")) == (130, True)


def test_the_first_push_that_fails_ends_a_push_from_a_pipe(command: Command, tmp_path: Path) -> None:
    """Goal: nothing is stored far behind a gap, and who pipes hears of it while the pipe is still open.

    Method: a node without room for any push, and a pipe that is never closed.
    """
    settings = {"STREAM_NODE_FREE_DISK_BYTES_MIN": str(2**60), "STREAM_NODE_ERROR_DELAY_S": "0.05"}
    with NodeProcess(tmp_path / "full", environment=settings) as node:
        deadline_s = time.monotonic() + PATIENCE_S
        with command.start("push", "s", "--node", node.address, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            while process.poll() is None:
                assert time.monotonic() < deadline_s
                try:
                    process.stdin.write(b"line\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    break
                time.sleep(0.05)
            assert process.wait(PATIENCE_S) == 1
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read().startswith(b"0 messages in s/0 ")
            assert b"not confirmed" in process.stderr.read()
            # The last line may still be in the buffer of this pipe, whose reader has ended.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def test_a_node_that_cannot_be_reached_ends_with_3(command: Command) -> None:
    done = command("pull", "s", "--node", "127.0.0.1:1")
    assert (done.code, done.out) == (3, b"")
    assert "127.0.0.1:1" in done.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["pull"], "Missing argument", id="no-stream"),
        pytest.param(["pull", "s", "--limit", "-1"], "--limit", id="negative-limit"),
        pytest.param(["pull", "s", "--index", "one"], "--index", id="no-number"),
        pytest.param(["consume", "s"], "--client", id="no-client"),
        pytest.param(["push", "s", "--window", "0"], "--window", id="no-window"),
        pytest.param(["pull", "s", "--node", "no where"], "HOST:PORT", id="no-address"),
        pytest.param(["pull", "s", "--via", "no:where"], "HOST:PORT", id="no-hop"),
        pytest.param(["plul", "s"], "plul", id="no-command"),
        pytest.param(["pull", "s", "--limmit", "1"], "--limmit", id="no-option"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, since nothing is done; `test_a_wrong_command_line_of_the_installed_command` is the whole way."""
    try:
        code: Any = run(lambda **_: build()(arguments))
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err


def test_a_wrong_command_line_of_the_installed_command(command: Command) -> None:
    done = command("pull", "s", "--limit", "-1")
    assert (done.code, done.out) == (2, b"")
    assert "--limit" in done.err
    assert "Traceback" not in done.err


def test_a_reader_that_closes_the_pipe_is_no_failure(command: Command, here: tuple[str, str]) -> None:
    """`stream-node pull … | head -1`."""
    command("push", "long", *here, standard_input=b"x" * 999 + b"\n" + b"y\n" * 99_999)
    with command.start("pull", "long", "--limit", "100000", *here) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x" * 999 + b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_follow_waits_for_more_and_resumes_after_ctrl_c(command: Command, here: tuple[str, str]) -> None:
    command("push", "followed", "--data", "one", *here)
    with command.start("consume", "followed", "--client", "c", "--follow", *here) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        command("push", "followed", "--data", "two", *here)
        assert process.stdout.readline() == b"two\n"
        trio.run(wait_until_saved, here[1], "c", "followed", 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    command("push", "followed", "--data", "three", *here)
    assert command("consume", "followed", "--client", "c", *here).out == b"three\n"


async def wait_until_saved(address: str, client_id: str, stream: str, index: int) -> None:
    async with stream_peer(address) as peer:
        with trio.fail_after(PATIENCE_S):
            while await peer.get_partition_index(client_id, stream, 0) != index:
                await trio.sleep(0.02)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The words that lead to every command that does something, and its help."""
    if hasattr(group, "commands"):
        for name, command in group.commands.items():
            yield from commands(command, (*path, name))
    else:
        yield path, group.help or ""


def test_the_help_of_every_command_has_an_example_of_itself() -> None:
    found = dict(commands(typer.main.get_command(build())))
    assert {("serve",), ("push",), ("pull",), ("consume",), ("verify",), ("demo",), ("bench", "push")} <= set(found)
    for path, text in found.items():
        assert f"stream-node {' '.join(path)}" in text.partition("Example: ")[2], path


def test_help_goes_to_stdout_with_0(command: Command) -> None:
    for arguments in (["--help"], ["push", "--help"]):
        done = command(*arguments)
        assert (done.code, done.err) == (0, "")
        assert "Usage: " in done.text
    assert "Example: journalctl --follow | stream-node push logs" in command("push", "--help").text
