"""Every command that a page shows is one that the program takes: its name, its options and the forms of their values.

Most pages are also run (`tests/test_pages.py`). Some commands cannot be: they need a cluster, or name other machines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from stream_node.cli.app import build
from tests.style.tree import ROOT, documents
from tests.support.pages import blocks, commands_in

PROGRAM = typer.main.get_command(build())
STARTS = re.compile(r"(?:^|[|&;(]\s*|\$\()(?:[A-Z_]+=\S+ +)*stream-node (?P<rest>[^|&;<>]*)")
"""Where a command begins in a line of a shell, and what belongs to it: up to a pipe or a redirection."""


def shown(text: str) -> Iterator[list[str]]:
    """The arguments of each `stream-node` in the shell blocks of a page."""
    for block in blocks(text):
        if block.language == "sh":
            for command in commands_in(block.text):
                for found in STARTS.finditer(command.replace("\\\n", " ")):
                    yield shlex.split(found["rest"].rstrip(") "), comments=True)


def problem(arguments: list[str]) -> str:
    """Why the program does not take these arguments; empty if it does."""
    # The exceptions of typer come from the click that it brings, so they are known by their message only.
    try:
        parse(PROGRAM, arguments)
    except Exception as error:
        return str(getattr(error, "message", error)) or repr(error)
    return ""


def parse(command: Any, arguments: list[str]) -> None:
    """Parses arguments as the program does, without running anything."""
    if not hasattr(command, "commands"):
        command.make_context(command.name, list(arguments))
        return
    if not arguments or arguments[0] not in command.commands:
        raise ValueError(f"there is no command {' '.join(arguments[:1])!r}")
    parse(command.commands[arguments[0]], arguments[1:])


PAGES = [path for path in documents(ROOT) if any(shown(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_program_takes_every_command_that_a_page_shows(page: Path) -> None:
    found = {" ".join(each): problem(each) for each in shown(page.read_text(encoding="utf-8"))}
    assert {command: why for command, why in found.items() if why} == {}


def test_commands_are_found_wherever_they_stand_in_a_line() -> None:
    text = "```sh\na | stream-node push x \\\n  --keys && stream-node pull x >y # c\nA=1 stream-node config show\n```\n"
    assert list(shown(text)) == [["push", "x", "--keys"], ["pull", "x"], ["config", "show"]]


@pytest.mark.parametrize(
    "wrong", [["pish", "x"], ["push", "x", "--kyes"], ["pull", "x", "--limit", "many"], ["stream", "lost"], ["pull"]]
)
def test_a_command_that_the_program_does_not_take_is_found(wrong: list[str]) -> None:
    assert problem(wrong)
