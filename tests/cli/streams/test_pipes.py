"""Goal: a command at a pipe loses nothing and changes nothing. Method: real pipes of a shell; a reader that takes three
lines, closed streams, and lines of every kind that go through `pull` and `push` again.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine

PATIENCE_S = 60.0


def shell(line: str, node: NodeProcess) -> subprocess.CompletedProcess[str]:
    """Run the line; in it, `sn` is the command line, and `$PIPESTATUS` the exit code of the first command of a pipe."""
    start = f'sn() {{ "{sys.executable}" -m stream_node "$@"; }}; export STREAM_NODE_ADDRESS={node.address}\n'
    command = ["bash", "-c", start + line]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what the reader of a pipe has taken")
@pytest.mark.parametrize("options", ["", "--all-partitions", "--share"])
def test_only_what_the_reader_took_is_saved(at_node: CommandLine, node: NodeProcess, stream: str, options: str) -> None:
    """The reader begins late, so that a pipe of the usual size would have taken some thousand messages."""
    at_node("push", stream, stdin=b"".join(b"%d\n" % number for number in range(5_000)))
    done = shell(f"sn consume '{stream}' --client me {options} | (sleep 1; head -3); echo ${{PIPESTATUS[0]}}", node)
    assert (done.stdout, done.stderr) == ("0\n1\n2\n0\n", "")
    assert at_node("index", "get", stream, "--client", "me").text == "3\n"
    whole = shell(f"sn consume '{stream}' --client me {options} | cat", node).stdout.splitlines()
    assert whole == [str(number) for number in range(3, 5_000)]
    assert at_node("index", "get", stream, "--client", "me").text == "5000\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["pull {}", "consume {} --client c", "stream list", "push {} --json"])
def test_closed_streams_end_without_a_traceback(
    at_node: CommandLine, node: NodeProcess, stream: str, arguments: str
) -> None:
    at_node("push", stream, "--data", "a")
    line = "sn " + arguments.format(f"'{stream}'")
    assert shell(f"{line} <&-; echo $?", node).stdout.endswith("0\n")
    assert shell(f"{line} </dev/null 2>&-; echo $?", node).stdout.endswith("0\n")
    closed = shell(f"{line} </dev/null >&-; echo $? >&2", node)
    *said, code = closed.stderr.splitlines()
    text = "standard output is closed; to discard what the command prints, write > /dev/null"
    told = json.dumps({"error": text, "exit_code": 1}) if "--json" in arguments else f"stream-node: {text}"
    assert (said, code) == ([told], "1")


def test_what_was_pulled_is_pushed_again_exactly(at_node: CommandLine, node: NodeProcess, stream: str) -> None:
    lines = [b"plain", b"", b"with a return\r", b"\r", b"\r\r", b"in the\rmiddle", b"\xff\x00", b"last\r"]
    at_node("push", stream, stdin=b"\n".join(lines))
    assert shell(f"set -o pipefail; sn pull '{stream}' | sn push '{stream} again'", node).returncode == 0
    assert at_node("pull", f"{stream} again").stdout == b"".join(line + b"\n" for line in lines)
    for options in ((), ("--keys",)):
        at_node("push", f"{stream} of Windows", "--crlf", *options, stdin=b"a\tb\r\nc\t\r\r\n\td\r\n")
    found = at_node("pull", f"{stream} of Windows").stdout
    assert found == b"a\tb\nc\t\r\n\td\nb\n\r\nd\n"
    assert "no lines" in at_node("push", stream, "--crlf", "--data", "a").failed(2)
