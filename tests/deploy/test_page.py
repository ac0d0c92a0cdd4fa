"""Goal: every command of docs/deploy.md is right. Method: commands of the program go through its own parser; the files
that they name are there; the figures that the page tells are those of the files.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import whole_command
from tests.deploy.deployed import DEPLOY, read_yaml
from tests.style.tree import ROOT
from tests.support.pages import blocks, commands_in

PAGE = (ROOT / "docs/deploy.md").read_text()
COMMANDS = [
    command
    for block in blocks(PAGE)
    if block.language == "sh"
    for command in commands_in(block.text.replace("\\\n", ""))
]
PROGRAMS = {"docker", "install", "kubectl", "promtool", "python3", "stream-node", "systemctl", "export"}
PROGRAMS |= {"groupadd", "chgrp", "chmod", "ln", "pip", "/opt/stream-node/bin/pip"}


def parse(words: list[str]) -> None:
    """Have the program parse a command without running it. Raises click's UsageError."""
    command: Any = whole_command()
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    command.make_context("stream-node", words)


def own_commands() -> list[list[str]]:
    """The words after `stream-node` of every command, also of those that run in a container."""
    found = []
    for command in COMMANDS:
        words = shlex.split(command.partition(" > ")[0])
        # The image, the container and the service have the name of the program: the last one is the program.
        places = [place for place, word in enumerate(words) if word == "stream-node"]
        runs = words[0] in ("stream-node", "sudo") or "exec" in words
        if places and runs and "systemctl" not in words:
            found.append(words[places[-1] + 1 :])
    return found


@pytest.mark.parametrize("words", own_commands(), ids=" ".join)
def test_the_program_takes_the_command(words: list[str]) -> None:
    parse(words)


def test_no_command_is_overlooked() -> None:
    told = [command.removeprefix("sudo ").split()[0] for command in COMMANDS]
    assert set(told) <= PROGRAMS, set(told) - PROGRAMS
    assert len(own_commands()) == 10
    with pytest.raises(Exception, match="No such option"):
        parse(["health", "--liv"])


def test_the_files_are_there_and_have_what_the_page_says() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]+", PAGE))
    assert {each for each in named if not (ROOT / each.rstrip("./")).exists()} == set()
    files = {path.relative_to(ROOT) for path in DEPLOY.rglob("*") if path.is_file()}
    # Each file is named, or is in a folder that is.
    for file in files - {Path("deploy/container/Containerfile.dockerignore")}:
        assert any(str(file).startswith(each.rstrip("./")) for each in named), file
    assert read_yaml("prometheus/prometheus.yml")["global"]["scrape_interval"] == "2s"
    assert "WatchdogSec=60s" in (DEPLOY / "systemd/stream-node.service").read_text()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_takes_the_files() -> None:
    told = [command for command in COMMANDS if command.startswith("promtool ")]
    assert len(told) == 2
    for command in told:
        done = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
