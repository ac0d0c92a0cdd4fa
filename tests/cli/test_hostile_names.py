"""Goal: what a peer names cannot forge a row, retitle a window or hide a line on an operator's terminal.

Method: a stream, a client id, keys and headers full of control characters, made by the client as any peer could; then
every command that prints them, and what it wrote is searched for anything that a terminal acts upon.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_client import Header, blocking
from stream_node.cli.values import printable, printable_bytes
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine, Done

EVIL = "\x1b]0;owned\x07\nforged 0 0\r\x7f\x9b31m\u202etxt\u2028end"
SHOWN = r"\x1b]0;owned\x07\nforged 0 0\r\x7f\x9b31m\u202etxt\u2028end"
"""What is left of it for people."""
CLI = Path(__file__).parents[2] / "stream_node" / "cli"
ALLOWED = {"output.py", "serve.py", "block_backfill.py", "settings.py", "progress.py"}
"""Modules that print by themselves: the function for all, JSON, figures for Prometheus, names of settings, steps
and numbers of a progress line."""


@pytest.fixture
def hostile(node: NodeProcess, stream: str) -> str:
    """A stream of such a name with a message, beside it one with twelve."""
    with blocking.connect(node.address) as client:
        name = stream + EVIL
        client.create_partitioned(name, 2).partitions[0].push(
            EVIL.encode(), key=EVIL.encode(), headers=[Header(EVIL, EVIL.encode())]
        )
        for number in range(12):
            client.create(f"{name}{EVIL}").push(b"%d" % number)
    return name


def is_harmless(done: Done) -> bool:
    """Whether every line of it, on both streams, is one that a terminal only shows."""
    written = done.text + done.stderr
    return all(line.isprintable() for line in written.removesuffix("\n").split("\n"))


def test_every_command_that_prints_names_escapes_them(at_node: CommandLine, hostile: str) -> None:
    client = ("--client", f"c{EVIL}")
    commands: list[tuple[str, ...]] = [
        ("stream", "create", hostile),
        ("stream", "create", hostile, "--partitions", "3"),
        ("stream", "list"),
        ("stream", "info", hostile),
        ("stream", "info", hostile, "--partition", "9"),
        ("stream", "info", f"{hostile} none"),
        ("stream", "retention", hostile, "--max-messages", "9"),
        ("stream", "truncate", hostile, "--before", "0", "--partition", "0"),
        ("push", hostile, "--data", "x"),
        ("push", hostile, "--data", "x", "--partition", "9"),
        ("pull", f"{hostile}{EVIL}"),
        ("index", "get", hostile, *client),
        ("index", "set", hostile, "first", *client),
        ("index", "set", hostile, "99", *client),
        ("index", "list"),
        ("consume", f"{hostile} none", *client),
        ("context", "add", EVIL, "a:1"),
        ("context", "use", EVIL),
        ("stream", "delete", hostile, "--dry-run"),
    ]
    for arguments in commands:
        done = at_node(*arguments)
        assert is_harmless(done), done
        named = r"\x9b31m\u202etxt" in done.text + done.stderr
        assert named or arguments[0] == "pull" or arguments[:2] == ("index", "get"), done
    listed = at_node("stream", "list", hostile)
    assert len(listed.text.splitlines()) == 1 + 4


def at_terminal(node: NodeProcess, *arguments: str) -> bytes:
    """What the command writes where its standard output is a terminal."""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "stream_node", *arguments, "--node", node.address]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=there, stderr=subprocess.PIPE) as process:
        os.close(there)
        written = b"".join(_read(here))
        assert process.wait(60) == 0
    return written.replace(b"\r\n", b"\n")


def _read(terminal: int) -> Iterator[bytes]:
    try:
        while data := os.read(terminal, 65_536):
            yield data
    except OSError:
        return  # The last one that had the other end has closed it.
    finally:
        os.close(terminal)


def test_messages_are_escaped_at_a_terminal_and_exact_in_a_pipe(
    at_node: CommandLine, node: NodeProcess, hostile: str
) -> None:
    raw = EVIL.encode()
    columns = ("pull", hostile, "--keys", "--headers", "--limit", "1")
    assert at_node(*columns).stdout == b"\t".join((raw, raw + b"=" + raw, raw)) + b"\n"
    assert at_terminal(node, *columns).decode() == "\t".join((SHOWN, f"{SHOWN}={SHOWN}", SHOWN)) + "\n"
    for verb in (("pull", "--limit", "1"), ("tail", "--from", "first", "--limit", "1")):
        assert at_terminal(node, verb[0], hostile, *verb[1:]).decode() == SHOWN + "\n"
    assert b"\x1b]0;owned\x07" in at_terminal(node, "pull", hostile, "--limit", "1", "--raw")


def test_nothing_else_prints(tmp_path: Path) -> None:
    """A new command that prints by itself would print names as they are."""
    modules = list(CLI.rglob("*.py"))
    assert {"app.py", "push.py"} <= {file.name for file in modules}
    printing = {file.name for file in modules if "typer.echo(" in file.read_text().replace("typer.echo(printable(", "")}
    assert printing <= ALLOWED


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 漢字 😀", "plain, ünïcode 漢字 😀"),
        ("a\tb\nc", r"a\tb\nc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x85\u2029", r"\x85\u2029"),
        ("\udcff", r"\udcff"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert printable_bytes(b"\xff\x1b") == rb"\xff\x1b"
