"""Goal: a command that fails by its user's mistake says so at once. Method: what it has loaded when it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stream_client import StreamNotFound
from stream_node.cli.app import CODES, exit_code
from stream_storage.errors import DatabaseInUse
from tests.cli.command import CommandLine, whole_command

PROGRAM = """
import sys
from stream_node.cli.app import main
sys.argv = ["stream-node", *{arguments}]
try:
    main()
except SystemExit as ended:
    print(ended.code, *sorted({{"sqlalchemy", "cardinal_streams", "block_node"}} & sys.modules.keys()))
"""


@pytest.mark.parametrize("name", sorted(name for names in CODES.values() for name in names))
def test_the_errors_are_where_they_are_looked_for(name: str) -> None:
    module, _, kind = name.rpartition(".")
    found = getattr(import_module(module), kind)
    assert issubclass(found, Exception)
    assert f"{found.__module__}.{found.__qualname__}" == name


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StreamNotFound("s"), 1),
        (DatabaseInUse(1, Path("x")), 1),
        (FileNotFoundError("x"), 1),
        (ExceptionGroup("x", [ExceptionGroup("y", [OSError("z")])]), 1),
        (ValueError("x"), None),
    ],
)
def test_subclasses_and_groups_have_the_code_of_what_they_are(error: Exception, code: int | None) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("arguments", "code"), [(("pull", "s", "--node", "127.0.0.1:1"), 3), (("pull", "s", "--node", "x:y"), 2)]
)
def test_what_is_not_needed_is_not_loaded(arguments: tuple[str, ...], code: int) -> None:
    program = PROGRAM.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == [str(code)], done


def test_an_error_under_json_is_json(command: CommandLine) -> None:
    """Goal: a program that reads --json can read the error, too. Method: a process of its own, in both forms."""
    plain = command("cardinal", "consume", "--application", "other")
    told = command.apart("cardinal", "consume", "--application", "other", "--json")
    assert (plain.code, told.code, told.stdout) == (2, 2, b"")
    assert json.loads(told.stderr) == {"error": plain.stderr.strip().removeprefix("stream-node: "), "exit_code": 2}


def leaves(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in group.commands.items():
        yield from leaves(each, *above, name) if hasattr(each, "commands") else [((*above, name), each)]


def test_wrong_usage_under_json_is_json(command: CommandLine) -> None:
    """Goal: that of every command, too. Method: an option that no command has, a group's wrong command, and of each
    command that needs it a missing argument and a value that is no number."""
    wrong = [("--json", "nothing"), ("stream", "nothing", "--json")]
    for name, each in leaves(whole_command()):
        wrong.append((*name, "--json", "--nothing"))
        if any(parameter.required for parameter in each.params):
            wrong.append((*name, "--json"))
        number = next((each for each in each.params if each.opts[0][:2] == "--" and "int" in each.type.name), None)
        if number is not None:
            wrong.append((*name, "--json", number.opts[0], "x"))
    assert len(wrong) > 100
    for arguments in wrong:
        told = command(*arguments)
        assert (told.code, told.stdout) == (2, b""), arguments
        error = json.loads(told.stderr)
        assert (error.keys(), error["exit_code"]) == ({"error", "exit_code"}, 2)
        assert error["error"].startswith(("No such", "Missing", "Invalid value")), told
