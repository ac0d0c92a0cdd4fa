"""Goal: what a new user runs into in the first hour is told in a sentence that says what to do next."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ockam.actors.address import complete_address
from stream_node.cli.app import explain_system_error
from stream_node.cli.values import UsageError, parse_start
from stream_node.node.logs import HumanLine
from stream_node.node.process import NodeProcess
from stream_service.names import near_names
from tests.cli.command import CommandLine, Done

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_port_in_use(command: CommandLine, node: NodeProcess, tmp_path: Path) -> None:
    done = command.apart("serve", "--data-dir", tmp_path / "d", "--listen", node.address)
    (line,) = done.stderr.splitlines()
    assert (done.code, done.stdout) == (1, b"")
    assert f"cannot listen at {node.address}: it is in use by another program; stop that, or choose" in line
    assert "Errno" not in line


def test_an_address_of_another_machine(command: CommandLine, tmp_path: Path) -> None:
    (line,) = command.apart(
        "serve", "--data-dir", tmp_path, "--listen", "192.0.2.1:0", "--insecure"
    ).stderr.splitlines()[1:]
    assert "cannot listen at 192.0.2.1:0: this machine does not have that address" in line


def test_nothing_listens(command: CommandLine) -> None:
    line = command("pull", "s", "--node", "127.0.0.1:1").failed(3)
    assert "cannot reach a node at 127.0.0.1:1: nothing listens there; `stream-node serve` starts a node" in line
    assert "Errno" not in line


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", "localhost:4000"),
        ("10.0.0.5", "10.0.0.5:4000"),
        ("node-1.example", "node-1.example:4000"),
        ("h:1", "h:1"),
        ("::1", "[::1]:4000"),
        ("[::1]", "[::1]:4000"),
        ("[::1]:7", "[::1]:7"),
    ],
)
def test_a_host_without_a_port_is_at_port_4000(command: CommandLine, text: str, address: str) -> None:
    assert complete_address(text) == address
    assert json.loads(command("context", "add", "x", text, "--json").stdout)["address"] == address


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("http://10.0.0.5:4000", "10.0.0.5:4000"),
        ("http://10.0.0.5:4000/streams", "10.0.0.5:4000"),
        ("user@node:4000", "node:4000"),
        ("my node:4001", "127.0.0.1:4001"),
        ("http://10.0.0.5", "10.0.0.5:4000"),
        ("https://node", "node:4000"),
        ("4000", "127.0.0.1:4000"),
        (":4001", "127.0.0.1:4001"),
        ("", "127.0.0.1:4000"),
        ("node:port", "node:4000"),
        ("node:99999", "node:4000"),
    ],
)
def test_what_is_no_address_is_told_with_what_was_meant(command: CommandLine, text: str, meant: str) -> None:
    assert f"{text!r} is not HOST:PORT (for example {meant})" in command("pull", "s", "--node", text).failed(2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["push", "", "--data", "x"],
        ["pull", ""],
        ["consume", "", "--client", "c"],
        ["consume", "s", "--client", ""],
        ["tail", ""],
        ["stream", "create", ""],
        ["stream", "info", ""],
        ["stream", "delete", ""],
        ["index", "get", "", "--client", "c"],
        ["index", "set", "s", "first", "--client", ""],
    ],
)
def test_an_empty_name(command: CommandLine, arguments: list[str]) -> None:
    assert "a name is empty; write one, such as orders" in command(*arguments).failed(2)


def test_a_folder_where_a_file_is_wanted_and_the_other_way(
    at_node: CommandLine, command: CommandLine, tmp_path: Path
) -> None:
    def failed(*arguments: object) -> str:
        done: Done = at_node(*arguments)
        assert done.code in (1, 2)
        return done.stderr

    assert f"{tmp_path}: this is a folder, and a file is wanted" in failed("push", "folders", tmp_path)
    assert f"{tmp_path}/none: there is no such file" in failed("push", "folders", tmp_path / "none")
    assert "this is a folder, and a file is wanted" in failed("config", "check", "--config", tmp_path)
    assert "there is no such file" in failed("config", "check", "--config", tmp_path / "none")
    served = command.apart("serve", "--data-dir", __file__)
    assert served.code == 1
    assert not re.search("Errno|[Ii]s a directory", served.stderr)


@pytest.mark.parametrize("text", ["2026-11-01", "2026-11-01T08:00", "2026-11-01 08:00", "20261101T08"])
def test_what_is_to_be_written_for_a_time_is_taken(text: str) -> None:
    with pytest.raises(UsageError, match=f"has no time zone: write {text}Z for UTC, or ") as caught:
        parse_start(text, NOW)
    utc, offset = re.findall(r"write (.*) for UTC, or (.*)$", str(caught.value))[0]
    assert parse_start(utc, NOW) == datetime.fromisoformat(text).replace(tzinfo=UTC)
    assert isinstance(parse_start(offset, NOW), datetime)


@given(st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.none()), st.sampled_from(["T", " "]))
def test_any_suggested_time_is_taken(time: datetime, separator: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_start(time.isoformat(separator), NOW)
    assert parse_start(str(caught.value).partition("write ")[2].partition(" for UTC")[0], NOW) == time.replace(
        tzinfo=UTC
    )


def test_a_stream_that_is_nearly_named(at_node: CommandLine, stream: str) -> None:
    for name in (f"{stream} orders", f"{stream} order-items", f"{stream} somethingelse"):
        at_node("stream", "create", name)
    said = at_node("pull", f"{stream} Ordres").failed(1)
    assert f"has no stream '{stream} Ordres'; it has '{stream} orders'" in said
    assert at_node("pull", "~~~~~~").failed(1).endswith("has no stream '~~~~~~'")


@pytest.mark.parametrize(
    ("name", "said"),
    [("ordrs", "'orders'"), ("ORDERS", "'orders'"), ("maile", "'mailer' or 'mailers'"), ("xyz", ""), ("", "")],
)
def test_near_names(name: str, said: str) -> None:
    assert near_names(name, ["orders", "mailers", "mailer"]) == said


def test_a_context_that_is_not_there(command: CommandLine) -> None:
    said = command("pull", "s", "--context", "office").failed(2)
    assert "there is no context 'office', and no other one; `stream-node context add office HOST:PORT` makes it" in said
    command("context", "add", "office", "h:1")
    command("context", "add", "lab", "h:2")
    assert "there is no context 'ofice'; there is 'office'" in command("context", "use", "ofice").failed(2)
    assert "there is no context 'zzz'; there is lab, office" in command("context", "use", "zzz").failed(2)


def test_the_version(command: CommandLine) -> None:
    assert re.fullmatch(r"stream-node \d+\.\d+[^\s,]*(, compiled by mypyc: \d+ modules)?\n", command("--version").text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no number", "no number"),
        ("at a: [Errno 111] Connection refused", "at a: nothing listens there; "),
        ("[Errno 28] No space left on device", "the disk is full"),
        ("[Errno 2] No such file or directory: 'a b'", "a b: there is no such file or folder"),
        ("[Errno 71] Protocol error", "protocol error"),
        ("[Errno -2] Name or service not known", "there is no host of that name"),
    ],
)
def test_numbers_of_the_system_are_put_into_words(text: str, said: str) -> None:
    assert explain_system_error(text).startswith(said)


def test_a_log_line_for_people() -> None:
    """Goal: a line is read at a glance, and nothing that a peer named acts on the terminal."""
    event = {
        "timestamp": "2026-11-22T06:15:00.123Z",
        "level": "warning",
        "event": "push_failed",
        "stream": "or\x1bders",
        "reason": "the disk\nis full",
        "pushes": 3,
        "statistics": {"much": 1},
    }
    plain_line = HumanLine(False)(None, "warning", dict(event))
    assert plain_line == r"06:15:00Z warning  push failed  stream='or\x1bders' reason='the disk\nis full' pushes=3"
    assert "\x1b[33mwarning\x1b[0m" in HumanLine(True)(None, "warning", dict(event))
    failed = HumanLine(False)(None, "error", {"event": "x", "exception": "Traceback\n  \x1b[2J"})
    assert failed.splitlines()[1:] == ["    Traceback", r"      \x1b[2J"]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_node_at_a_terminal_speaks_words(tmp_path: Path, flags: list[str]) -> None:
    """Goal: somebody who starts a node sees one readable line that it listens, and at Ctrl-C a short summary.
    Method: `serve` with all three standard streams on one terminal."""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "stream_node", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0"]
    environment = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen([*command, *flags], stdin=there, stdout=there, stderr=there, env=environment) as node:
        os.close(there)
        timer = threading.Timer(60, node.kill)
        timer.start()
        written = b""
        with suppress(OSError):  # The node, the last to have the other end, closes it.
            while data := os.read(here, 65_536):
                written += data
                if b"\n" in written and node.poll() is None and b"draining" not in written:
                    node.send_signal(signal.SIGINT)
        timer.cancel()
        assert node.wait(60) == 0
    os.close(here)
    first, *rest = written.decode().replace("\r\n", "\n").splitlines()
    if flags:
        assert json.loads(first)["event"] == "listening"
    else:
        assert re.fullmatch(r"HTTP is at http://127\.0\.0\.1:\d+", rest.pop(0))
        assert re.fullmatch(rf"listening at 127\.0\.0\.1:\d+, with the data in {tmp_path}; Ctrl-C stops it", first)
    assert [line.split()[2] for line in rest] == ["started", "draining", "stopped"]
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ info     stopped  up_s=\S+ connections=0 .* stored=0 .*", rest[2])
