"""Somebody who reads a page of the documentation and does what it says: types its commands, runs its programs, and
compares what they print with what the page shows.

A page's blocks mean:

- `sh`: commands, one after the other, typed into a shell in an empty folder. `stream-node serve …` goes to the
  background once it listens, with or without `&`; `kill %1` stops the first node, `kill -9 %1` ends it at once, and
  `kill -HUP %1` has it read its settings again.
- `python`: a program, which runs; if its first line is a comment with the name of a file, it is saved there instead.
- `text`: what the last block of commands, or the last program, printed. `…` stands for any text within a line.
- `toml`, `json`: if the first line is a comment with the name of a file, the file; otherwise nothing happens.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = re.compile(r"\d+\.\d+ s\b")
DEFAULT_ADDRESS = "127.0.0.1:4000"
ADDRESS_OPTION = re.compile(r"(--listen|--http) (127\.0\.0\.1:\d+)")
FILE_NAME = re.compile(r"# ([\w.-]+\.\w+)\n")
HERE_DOCUMENT = re.compile(r"<<'?(\w+)'?")
KILL = re.compile(r"kill (?:-(?P<signal>9|HUP) )?%(?P<node>\d+)")
RUN_TIMEOUT_S = 120.0


class Block(NamedTuple):
    """A fenced block: what it is written in, and its text."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*match.groups()) for match in BLOCK.finditer(text)]


def commands_in(text: str) -> list[str]:
    """The commands of a shell block: its lines, joined where a command has several, without comments."""
    commands: list[str] = []
    end = ""
    for line in text.splitlines():
        if end or (commands and commands[-1].endswith("\\")):
            commands[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line and not line.startswith("#"):
            commands.append(line)
            found = HERE_DOCUMENT.search(line)
            end = found[1] if found else ""
    return commands


class Reader:
    """Somebody who does what a page says, in a folder of their own. A context manager: the nodes end with it.

    programs: a folder with the programs `stream-node` and `python`; without it, each command starts an interpreter.
    address: of a node that runs already, for pages that start none.
    """

    def __init__(self, directory: Path, programs: Path | None = None, address: str = "") -> None:
        self._directory = directory
        self._nodes: list[subprocess.Popen[str]] = []
        self._addresses = {DEFAULT_ADDRESS: address} if address else {}
        """Those of the page, each with the one that the node really has."""
        if programs is None:
            programs = directory / "bin"
            programs.mkdir()
            for name, arguments in (("stream-node", "-m stream_node"), ("python", "")):
                program = programs / name
                program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W error {arguments} "$@"\n')
                program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAM_NODE_", "XDG_"))}
        self._environment = {
            **kept,
            "HOME": str(directory),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
            "STREAM_NODE_LISTEN": "127.0.0.1:0",
            # pytest has our plugin and no other, also if the environment was made before there was one.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "stream_node.pytest_plugin",
        }
        if address:
            self._environment["STREAM_NODE_ADDRESS"] = address

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self._nodes:
            node.kill()
            node.communicate()

    def read(self, page: str) -> None:
        """Do everything that a page says, in its order. Raises AssertionError where it prints something else."""
        output = ""
        for block in blocks(page):
            name = FILE_NAME.match(block.text)
            if block.language == "sh":
                output = "".join(map(self.type, commands_in(block.text)))
            elif name and block.language != "text":
                (self._directory / name[1]).write_text(self._with_real_addresses(block.text))
            elif block.language == "python":
                output = self.run_python(block.text)
            elif block.language == "text":
                check_output(output, block.text)
            else:
                assert block.language in {"toml", "json", "yaml"}, f"nobody runs {block.language}"

    def type(self, command: str) -> str:
        """Run one command; what it prints."""
        if command.startswith("make "):
            return ""
        if command.startswith("stream-node serve"):
            self._serve(command.removesuffix("&"))
            return ""
        if found := KILL.fullmatch(command):
            node = self._nodes[int(found["node"]) - 1]
            if found["signal"] == "HUP":
                node.send_signal(signal.SIGHUP)
            else:
                kill = found["signal"] == "9"
                assert self._stop(node, kill=kill) == (-signal.SIGKILL if kill else 0)
            return ""
        return self._run(["sh", "-c", self._with_real_addresses(command)])

    def run_python(self, text: str) -> str:
        """Run a Python block; what it prints. Its node is the one that we started."""
        (self._directory / "client.py").write_text(self._with_real_addresses(text))
        return self._run(["sh", "-c", "exec python client.py"])

    def stop(self) -> list[int]:
        """Stop the nodes that still run, as Ctrl-C or a service manager does; their exit codes."""
        return [self._stop(node) for node in self._nodes if node.poll() is None]

    def _stop(self, node: subprocess.Popen[str], *, kill: bool = False) -> int:
        node.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        node.communicate(timeout=RUN_TIMEOUT_S)
        return node.returncode

    def _with_real_addresses(self, text: str) -> str:
        for shown, real in self._addresses.items():
            text = text.replace(shown, real)
        return text

    def _serve(self, command: str) -> None:
        # The shown address of a node is free for the test only by chance: the node gets a free port instead.
        shown = {"--listen": DEFAULT_ADDRESS, **{found[1]: found[2] for found in ADDRESS_OPTION.finditer(command)}}
        log_file = self._directory / f"node{len(self._nodes)}.log"
        command = ADDRESS_OPTION.sub(r"\1 127.0.0.1:0", self._with_real_addresses(command))
        with log_file.open("wb") as log:
            node = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._nodes.append(node)
        assert node.stdout is not None
        line = node.stdout.readline()
        assert line, f"{command}: {log_file.read_text()}"
        started = json.loads(line)
        self._addresses[shown["--listen"]] = started["addresses"][0]
        if "--http" in shown:
            self._addresses[shown["--http"]] = started["http"][0]
        if shown["--listen"] == DEFAULT_ADDRESS:
            self._environment["STREAM_NODE_ADDRESS"] = started["addresses"][0]

    def _run(self, command: list[str]) -> str:
        # The variable stands for the default address. A page that names a node in another way does not have it.
        left_out = "STREAM_NODE_ADDRESS" if "--context" in command[-1] else ""
        result = subprocess.run(
            command,
            cwd=self._directory,
            env={name: value for name, value in self._environment.items() if name != left_out},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"{command[-1]}: {result.stdout}"
        output = result.stdout
        for shown, real in self._addresses.items():
            output = output.replace(real, shown)
        return output


def check_output(output: str, shown: str) -> None:
    """Raises AssertionError where a page shows something else than what was printed. Durations may differ."""
    output, shown = SECONDS.sub("0 s", output), SECONDS.sub("0 s", shown)
    pattern = re.escape(shown).replace("…", "[^\n]*")
    if not re.fullmatch(pattern, output):
        assert output == shown
