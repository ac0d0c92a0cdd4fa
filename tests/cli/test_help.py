"""Help: quick, complete and with an example for every command; and the shell's completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType

import pytest
import typer

from stream_node.cli.app import build
from stream_node.cli.commands import _docstrings_of
from tests.cli.command import CommandLine

HEAVY = {"alembic", "anyio", "asyncio", "msgspec", "rich", "sqlalchemy", "sqlite3", "structlog", "trio"}
"""What no help needs, and what takes longer to import than a help may take."""
MODULES_MAX = 330
"""Of a help: the interpreter's own, typer's and a few of ours."""


def commands(app: typer.Typer, *above: str) -> Iterator[tuple[str, ...]]:
    for each in app.registered_commands:
        assert each.callback is not None
        yield (*above, each.name or each.callback.__name__)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        assert group.name
        yield from commands(group.typer_instance, *above, group.name)


COMMANDS = list(commands(build()))


def test_a_start_builds_the_named_command_alone() -> None:
    """Claim: the first word of a command line chooses what is built, and loses no command. Method: each first word."""
    for first in dict.fromkeys(name[0] for name in COMMANDS):
        assert list(commands(build(first))) == [name for name in COMMANDS if name[0] == first]
    assert [list(commands(build(first))) for first in ("nonsense", "--help", "backfill")] == [COMMANDS] * 3


def test_the_first_help_shows_what_the_whole_command_would(capsys: pytest.CaptureFixture[str]) -> None:
    """Claim: the short help, which reads no command's options, misses nothing. Method: the help of all commands."""
    shown = []
    for first in ("--help", None):
        build(first)(["--help"], prog_name="stream-node", standalone_mode=False)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "Push the lines of the input" in shown[0]


def test_the_first_help_needs_no_docstring_of_a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: functions without any constant, as Python 3.14 makes them, cost no help. Method: such byte code."""

    def stripped(code: CodeType) -> CodeType:
        constants = tuple(stripped(each) if isinstance(each, CodeType) else each for each in code.co_consts)
        return code.replace(co_consts=() if constants == (None,) else constants)

    build("--help")
    get_code = SourceFileLoader.get_code

    def without_constants(self: SourceFileLoader, name: str) -> CodeType:
        code = get_code(self, name)
        assert code is not None
        return stripped(code)

    monkeypatch.setattr(SourceFileLoader, "get_code", without_constants)
    _docstrings_of.cache_clear()
    assert list(commands(build("--help"))) == COMMANDS
    _docstrings_of.cache_clear()


def imported_by(*arguments: str, **environment: str) -> set[str]:
    program = (
        "import sys\nfrom stream_node.cli.app import main\nsys.argv[0] = 'stream-node'\n"
        "try:\n main()\nexcept SystemExit as ended:\n assert not ended.code\n"
        "sys.stderr.write('\\n'.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("Usage: stream-node" in done.stdout) != bool(environment)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), ("push", "--help"), ("config", "show", "--help")])
def test_help_imports_little(arguments: tuple[str, ...]) -> None:
    modules = imported_by(*arguments)
    assert {module.partition(".")[0] for module in modules} & HEAVY == set()
    assert len(modules) < MODULES_MAX


def test_a_completion_imports_little() -> None:
    words = "stream-node doctor --li"
    asked = {"_STREAM_NODE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    modules = imported_by(**asked)
    assert {module.partition(".")[0] for module in modules} & HEAVY == set()
    assert len(modules) < MODULES_MAX


def test_a_value_that_looks_like_a_help_runs_the_command(command: CommandLine) -> None:
    """Claim: a command that only its last word makes look like a help has all that it uses. Method: real processes."""
    for last in (("--data", "--help"), ("--", "--help")):
        done = command.apart("push", "orders", "--node", "127.0.0.1:1", *last)
        assert "Traceback" not in done.stderr
        assert done.code in (1, 3)


def test_two_dashes_may_stand_before_a_command(command: CommandLine) -> None:
    """Claim: with `--` before its name, a command does the same, also a check. Method: real processes, and no node."""
    lost = ("--node", "127.0.0.1:1")
    done = command.apart("--", "status", "--check", "lag=1", *lost)
    assert (done.code, done.text.partition(":")[0]) == (3, "UNKNOWN")
    done = command.apart("--", "push", "orders", "--data", "paid", *lost)
    assert (done.code, done.stdout) == (3, b"")
    assert "cannot reach a node" in done.stderr


def test_the_protocols_of_status_and_top_import_no_database() -> None:
    program = "import sys, stream_node.top.reading, stream_node.hosting.status, stream_node.care.trouble_service\n"
    program += "print('sqlalchemy' in sys.modules, 'stream_node.node.parts' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_and_json(command: CommandLine, name: tuple[str, ...]) -> None:
    help_text = command(*name, "--help").text
    words = " ".join(help_text.split())
    examples = re.findall(
        r"[^.:]*: (?:[A-Z_]+=\S+ )?(?:[^:]* \| )?stream-node ([a-z].*?)(?= [A-Z]\w+:| Arguments:|$)", words
    )
    assert any(example.startswith(" ".join(name)) for example in examples), help_text
    assert "--json" in words


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_wrong_usage_is_2(command: CommandLine, name: tuple[str, ...]) -> None:
    done = command(*name, "--no-such-option")
    assert (done.code, done.stdout) == (2, b"")
    assert "--no-such-option" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str) -> None:
    def completed(words: str) -> str:
        environment = {
            **os.environ,
            "_STREAM_NODE_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": words,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        program = "import sys; sys.argv = ['stream-node']; from stream_node.cli.app import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.stdout

    assert "doctor" in completed("stream-node doc")
    assert "remove" in completed("stream-node context rem")
    assert "--data-dir" in completed("stream-node verify --data")
