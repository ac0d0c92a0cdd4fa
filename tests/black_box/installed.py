"""Environments outside the repository, into which wheels of this tree are installed, and the nodes in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.style.tree import ROOT

LINES = b"one\ntwo\nthree\n"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
NO_INDEX = re.compile(r"Max retries|Connection|Name or service|Network is|from versions: none")
"""What pip says where it reaches no index."""


def build_wheel(source: Path, folder: Path) -> Path:
    """Builds the wheel of a pyproject.toml into an empty folder, without a network."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    return file


class Installed:
    """An environment outside the repository, in which only its own commands are used."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        """folder: gets the environment, which is empty, and a home. python: makes the environment."""
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.python = folder / "environment/bin/python"
        subprocess.run([python, "-m", "venv", "--without-pip", folder / "environment"], check=True)

    @property
    def packages(self) -> Path:
        """The folder of the packages of this environment."""
        (found,) = (self.folder / "environment/lib").glob("python*/site-packages")
        return found

    def pip(self, *arguments: str | Path, source: Path | None = None) -> str:
        """Runs pip on this environment and returns what it says. Skips the test where no index can be reached."""
        command = [*PIP, "--python", self.python, *arguments]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=600)
        skip_without_index(done)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def borrow(self, *folders: Path) -> None:
        """Lets this environment import the packages of the tests' environment, and those of other folders.

        It gets only paths: the editable installation of this repository does not come along.
        """
        paths = [Path(sysconfig.get_paths()["purelib"]), *folders]
        (self.packages / "others.pth").write_text("".join(f"{each}\n" for each in paths))

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAM_NODE_", "PYTHON"))}
        # The first PATH entry is that of an activated environment.
        path = f"{self.python.parent}{os.pathsep}{kept['PATH']}"
        return {**kept, "HOME": str(self.home), "XDG_DATA_HOME": str(self.home), "PATH": path}

    def __call__(self, *arguments: str, stdin: bytes = b"", alone: bool = False) -> bytes:
        """Runs the command `stream-node`, and returns what it prints. alone: PATH has only this environment."""
        return self.run(self.python.with_name("stream-node"), *arguments, stdin=stdin, alone=alone)

    def fails(self, *arguments: str) -> str:
        """Runs the command `stream-node`, which must fail, and returns what it says on standard error."""
        with pytest.raises(AssertionError) as failure:
            self(*arguments)
        return str(failure.value)

    def program(self, text: str, *arguments: str, folder: Path | None = None) -> str:
        """Runs a Python program in a folder, by default the home. It returns what the program prints."""
        file = (folder or self.home) / "program.py"
        file.write_text(text)
        return self.run(self.python, file.name, *arguments, folder=folder).decode()

    def run(self, *command: str | Path, stdin: bytes = b"", folder: Path | None = None, alone: bool = False) -> bytes:
        only = {"PATH": str(self.python.parent)} if alone else {}
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            cwd=folder or self.home,
            env=self.environment() | only,
            check=False,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    @contextmanager
    def node(self, *, folder: Path | None = None) -> Iterator[str]:
        """Yields the address of a node. folder: where it runs, and the first place of its imports."""
        module = [str(self.python), "-m", "stream_node"]
        command = module if folder else [str(self.python.with_name("stream-node"))]
        serve = [*command, "serve", "--listen", "127.0.0.1:0", "--json"]
        node = subprocess.Popen(serve, cwd=folder or self.home, env=self.environment(), stdout=subprocess.PIPE)
        try:
            assert node.stdout is not None
            line: dict[str, Any] = msgspec.json.decode(node.stdout.readline())
            assert Path(line["data_dir"]).is_relative_to(self.home)
            yield line["addresses"][0]
            node.terminate()
            assert node.wait(60) == 0
        finally:
            node.kill()
            node.wait()
            if node.stdout is not None:
                node.stdout.close()

    def smoke(self) -> None:
        """What the README begins with: the version, a node, a push, a pull; then the node stops in good order."""
        version = re.search('^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert version is not None
        # Compiled modules that the environment has are told.
        assert self("--version").decode().strip().partition(", compiled")[0] == f"stream-node {version[1]}"
        with self.node() as address:
            self("push", "numbers", "--node", address, stdin=LINES)
            assert self("pull", "numbers", "--node", address, "--raw") == LINES
        # The code that ran was the installed one.
        found = self.program("import stream_node; print(stream_node.__file__)")
        assert Path(found.strip()).is_relative_to(self.folder)


def skip_without_index(done: subprocess.CompletedProcess[str]) -> None:
    """Skips the test if pip failed because it reaches no index."""
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip("needs packages from outside")
