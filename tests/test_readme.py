"""The README is run: its commands in order, in an empty folder, with the output that they show. The other
pages are run in `tests/test_pages.py`.

Not run are the lines that begin with `make`: they set up the environment that this test runs in, or run this test.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.pages import BLOCK, ROOT, Reader, blocks, check_output, commands_in
from tools.record_session import KILL, SESSION

README = (ROOT / "README.md").read_text(encoding="utf-8")
README_LINES_MAX = 140


def commands() -> list[str]:
    """The lines of the README that are typed into a shell."""
    return [line for block in blocks(README) if block.language == "sh" for line in block.text.splitlines()]


def test_what_the_readme_says_to_do_works_and_prints_what_it_shows(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        reader.read(README)
        assert reader.stop() == [0]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= README_LINES_MAX


def test_the_picture_shows_commands_of_the_readme_and_loads_nothing() -> None:
    svg = (ROOT / "docs" / "images" / "session.svg").read_text(encoding="utf-8")
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    typed = "".join("".join(text.itertext()) for text in texts).replace("\xa0", " ")
    assert re.findall('["\'(]\\s*(https?:[^"]*)', svg) == ["http://www.w3.org/2000/svg"]
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


def test_a_block_is_cut_into_commands() -> None:
    text = "a \\\n  b\n# comment\n\ncat >x <<'END'\n# 1\n\nEND\nc\n"
    assert commands_in(text) == ["a \\\n  b", "cat >x <<'END'\n# 1\n\nEND", "c"]


@pytest.mark.parametrize(("output", "shown"), [("a 1.23 s\n", "a 0.00 s\n"), ("x 12 y\n", "x … y\n")])
def test_what_differs_from_run_to_run_is_not_compared(output: str, shown: str) -> None:
    check_output(output, shown)


@pytest.mark.parametrize(("output", "shown"), [("a\n", "b\n"), ("a\nb\n", "a…\n"), ("a\n", "")])
def test_other_output_is_found(output: str, shown: str) -> None:
    with pytest.raises(AssertionError):
        check_output(output, shown)
