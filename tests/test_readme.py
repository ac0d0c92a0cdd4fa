"""The README and two pages are run: their commands in order, in an empty folder, with the output that they show.

Not run are the lines that begin with `make`: they set up the environment that this test runs in, or run this test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tools.record_session import KILL, SESSION

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/operating.md", "docs/block-node.md")
}
"""The pages whose commands are run."""

README = PAGES["README.md"]
README_LINES_MAX = 130
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = re.compile(r"\d+\.\d+ s\b")
DEFAULT_ADDRESS = "127.0.0.1:4000"
RUN_TIMEOUT_S = 60.0


class Block(NamedTuple):
    """A fenced block: what it is written in, and its text."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*match.groups()) for match in BLOCK.finditer(text)]


def commands() -> list[str]:
    """The lines of the README that are typed into a shell."""
    return [line for block in blocks(README) if block.language == "sh" for line in block.text.splitlines()]


class Reader:
    """Somebody who does what the README says, in a folder of their own. A context manager: the node ends with it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._node: subprocess.Popen[str] | None = None
        self._address = ""
        programs = directory / "bin"
        programs.mkdir()
        program = programs / "stream-node"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W error -m stream_node "$@"\n')
        program.chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
            "STREAM_NODE_LISTEN": "127.0.0.1:0",
        }

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._node is not None:
            self._node.kill()
            self._node.communicate()

    def type(self, command: str) -> str:
        """Run one line of a shell block; what it prints. `serve` goes to the background once it listens."""
        if command.startswith("make "):
            return ""
        if command.startswith("stream-node serve"):
            self._serve(command)
            return ""
        return self._run(["sh", "-c", command])

    def run_python(self, text: str) -> str:
        """Run a Python block; what it prints. Its node is the one that we started."""
        program = self._directory / "client.py"
        program.write_text(text.replace(DEFAULT_ADDRESS, self._address))
        return self._run([sys.executable, "-W", "error", str(program)])

    def stop(self) -> int:
        """Stop the node as Ctrl-C or a service manager does; its exit code."""
        assert self._node is not None, "the README starts no node"
        self._node.terminate()
        self._node.communicate(timeout=RUN_TIMEOUT_S)
        return self._node.returncode

    def _serve(self, command: str) -> None:
        assert self._node is None, "the README starts a second node"
        with (self._directory / "node.log").open("wb") as log:
            self._node = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._node.stdout is not None
        line = self._node.stdout.readline()
        assert line, f"{command}: {(self._directory / 'node.log').read_text()}"
        self._address = json.loads(line)["addresses"][0]
        self._environment["STREAM_NODE_ADDRESS"] = self._address

    def _run(self, command: list[str]) -> str:
        result = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"{command[-1]}: {result.stderr}"
        return result.stdout


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_do_works_and_prints_what_it_shows(tmp_path: Path, page: str) -> None:
    with Reader(tmp_path) as reader:
        output = ""
        for block in blocks(PAGES[page]):
            if block.language == "sh":
                output = "".join(map(reader.type, block.text.splitlines()))
            elif block.language == "python":
                output = reader.run_python(block.text)
            else:
                assert block.language == "text", f"nobody runs {block.language}"
                assert SECONDS.sub("… s", output) == SECONDS.sub("… s", block.text)
        assert reader.stop() == 0


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= README_LINES_MAX


def test_the_picture_shows_commands_of_the_readme_and_loads_nothing() -> None:
    svg = (ROOT / "docs" / "session.svg").read_text(encoding="utf-8")
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    typed = "".join("".join(text.itertext()) for text in texts).replace("\xa0", " ")
    assert re.findall('https?:[^"]*', svg) == ["http://www.w3.org/2000/svg"]
    for command in SESSION:
        assert f"$ {command}" in typed
        assert command.removesuffix(" &") in (*commands(), KILL)


def test_the_quick_start_shows_the_main_commands() -> None:
    shown = {verb for line in commands() for verb in re.findall(r"stream-node (\w+)", line)}
    assert shown >= {"serve", "push", "pull", "consume", "verify"}


def test_every_make_command_of_the_readme_is_a_target() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert named >= {"demo", "test"}
    assert named | set(re.findall(r"`make (\w+)`", README)) <= targets


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("```sh\nmake x\n```\n", [("sh", "make x\n")]),
        ("a\n```sh\nb\nc\n```\n\n```text\nd\n```\n", [("sh", "b\nc\n"), ("text", "d\n")]),
        ("`sh` only\n", []),
    ],
)
def test_blocks_are_found(text: str, names: list[tuple[str, str]]) -> None:
    assert [match.groups() for match in BLOCK.finditer(text)] == names
