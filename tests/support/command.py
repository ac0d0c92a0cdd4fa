"""The installed command as a child process, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
"""First on the path of a child process, so that what is tested is this tree, wherever the installation points."""
TIMEOUT_S = 120.0
SCRIPT = Path(sys.executable).with_name("stream-node")
COMMAND = (str(SCRIPT),) if SCRIPT.exists() else (sys.executable, "-m", "stream_node")
"""The script that an installation makes; in a bare environment, the same as a module."""


def python_program(body: str, *options: str) -> str:
    """The text of an executable file that this Python runs. The first line of a file names no path with a space, so the
    shell begins; Python takes what the shell reads for a string."""
    return f"#!/bin/sh\n'''exec' '{sys.executable}' {' '.join(options)} \"$0\" \"$@\"\n' '''\n{body}"


class Done(NamedTuple):
    """How a command ended: exit code, and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def rows(self) -> list[Any]:
        """One JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> Any:
        (row,) = self.rows
        return row

    @property
    def error(self) -> str:
        """The one line on stderr."""
        (line,) = self.err.splitlines()
        return line


class Command:
    """`stream-node` with a home that is a temporary folder and no STREAM_NODE_* variables but those given."""

    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_NODE_")}
        folders = {
            name: str(home) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
        }
        self.environment = {**kept, **folders, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONPATH": str(ROOT)}

    def __call__(
        self,
        *arguments: str | Path,
        standard_input: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Done:
        """Run it to its end."""
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=standard_input,
            capture_output=True,
            timeout=timeout_s,
            env={**self.environment, **(environment or {})},
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr.decode())

    def start(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start it and go on; use it as a context manager, and end it within."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.environment, **(environment or {})},
        )
