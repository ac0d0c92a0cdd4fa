"""The command line inside the test: its exit code and what it wrote, without a process of its own."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
import typer

from stream_node.cli.app import build, run
from stream_node.node.process import NodeProcess

T = TypeVar("T")


class Done(NamedTuple):
    """What a command ended with."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    def read(self, schema: type[T]) -> T:
        """The one JSON object that it printed, which has these fields and no other."""
        assert (self.code, self.stderr) == (0, ""), self
        return msgspec.json.decode(self.stdout, type=schema)

    def read_lines(self, schema: type[T]) -> list[T]:
        """The same, of as many objects as there are lines."""
        assert (self.code, self.stderr) == (0, ""), self
        return [msgspec.json.decode(line, type=schema) for line in self.stdout.splitlines()]

    @property
    def warnings(self) -> list[str]:
        """What it said on stderr: the lines of text, or with --json the objects."""
        return [
            msgspec.json.decode(line)["warning"] if line[:1] == "{" else line.removeprefix("stream-node: ")
            for line in self.stderr.splitlines()
        ]

    def failed(self, code: int) -> str:
        """The one line on stderr of a command that failed so: text, or with --json an object."""
        assert (self.code, self.stdout) == (code, b""), self
        (line,) = self.stderr.splitlines()
        assert line.startswith(("stream-node: ", '{"error": '))
        return line


@cache
def whole_command() -> Callable[..., Any]:
    """The command line with all commands, made once: its making takes longer than most commands."""
    return typer.main.get_command(build())


class CommandLine:
    """`stream-node`, called with arguments and, where it reads it, a standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capture

    def __call__(self, *arguments: Any, stdin: bytes = b"") -> Done:
        self._capture.readouterr()
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            self._monkeypatch.setattr(sys, "argv", ["stream-node", *map(str, arguments)])
            try:
                code = run(partial(whole_command(), prog_name="stream-node"))
            except SystemExit as ended:
                code = int(ended.code or 0)
        sys.stdout.flush()
        written = self._capture.readouterr()
        return Done(code, written.out, written.err.decode())

    def apart(self, *arguments: Any) -> Done:
        """The same in a process of its own: for commands that configure the logs of their process."""
        command = [sys.executable, "-m", "stream_node", *map(str, arguments)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=False)
        return Done(done.returncode, done.stdout, done.stderr.decode())


def at_terminal(answer: bytes, *arguments: Any) -> tuple[int, str]:
    """The exit code of a command that is answered at a terminal, and what it wrote."""
    here, there = pty.openpty()
    try:
        os.write(here, answer)
        command = [sys.executable, "-m", "stream_node", *map(str, arguments)]
        done = subprocess.run(command, stdin=there, capture_output=True, timeout=60, check=False)
    finally:
        os.close(here)
        os.close(there)
    return done.returncode, (done.stdout + done.stderr).decode()


def completed(node: NodeProcess, folder: Path, *words: str) -> list[str]:
    """What a shell offers after these words, of which the last is incomplete."""
    environment = {
        **os.environ,
        "_STREAM_NODE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("stream-node", *words)),
        "COMP_CWORD": str(len(words)),
        "STREAM_NODE_ADDRESS": node.address,
        "XDG_CONFIG_HOME": str(folder),
    }
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'stream-node'; from stream_node.cli.app import main; main()",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split()
