"""Goal: rules by command: added, listed, explained, removed. Method: the commands inside the test, on a real file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.command import CommandLine
from tests.cli.promised import promised

READS = ("--who", "token:spark", "--may", "read", "--may", "index", "--on", "orders")


def test_a_rule_is_added_listed_checked_and_removed(command: CommandLine, tmp_path: Path) -> None:
    file = ("--rules", tmp_path / "access.toml")
    made = command("rule", "add", "spark reads", *READS, *file, "--json").read(promised.RuleChanged)
    assert (made.who, made.may, made.may_not, made.on) == (["token:spark"], ["read", "index"], [], ["orders"])
    command("rule", "add", "not old", "--who", "*", "--may-not", "read", "--on", "orders-old", *file)
    listed = command("rule", "list", *file, "--json").read(promised.RulesListed)
    assert [each.name for each in listed.rules] == ["spark reads", "not old"]
    shown = command("rule", "list", *file).text.splitlines()[1].split()
    assert shown == ["spark", "reads", "token:spark", "read", "index", "-", "orders"]

    allowed = command("rule", "check", "token:spark", "read", "orders", *file)
    assert allowed.text == "allowed: read on 'orders' for token:spark: rule 'spark reads' allows it\n"
    refused = command("rule", "check", "token:spark", "read", "orders-old", *file)
    assert refused.code == 1
    assert refused.text == "refused: read on 'orders-old' for token:spark: rule 'not old' forbids it\n"
    nobody = command("rule", "check", "anonymous", "read", "orders", *file, "--json")
    assert nobody.code == 1
    checked = msgspec.json.decode(nobody.stdout, type=promised.RuleChecked)
    assert (checked.allowed, checked.rule) == (False, None)

    assert "1 rule left" in command("rule", "remove", "not old", *file).text
    assert command("rule", "check", "token:spark", "read", "orders-old", *file).code == 0


def test_what_the_node_keeps_is_checked_too(command: CommandLine, tmp_path: Path) -> None:
    file = ("--rules", tmp_path / "access.toml")
    command("rule", "add", "all", "--who", "*", "--may", "all", "--on", "", *file)
    kept = command("rule", "check", "anonymous", "write", "block_node.blocks", *file)
    assert kept.code == 1
    assert "block node alone" in kept.text


def test_what_the_forwarding_service_keeps_is_checked_too(command: CommandLine, tmp_path: Path) -> None:
    """Claim: the check refuses what a node with these settings refuses. Method: the command, without and
    with the file of settings that turn the service on."""
    rules, settings = ("--rules", tmp_path / "access.toml"), tmp_path / "settings.toml"
    command("rule", "add", "all", "--who", "*", "--may", "all", "--on", "", *rules)
    settings.write_text(f"access_rules = '{rules[1]}'\nforwarding = true\n")
    for right in ("write", "create"):
        assert command("rule", "check", "anonymous", right, "forward/1/a", *rules).code == 0
        kept = command("rule", "check", "anonymous", right, "forward/1/a", "--config", settings)
        assert kept.code == 1
        assert "forwarding service alone" in kept.text
    assert command("rule", "check", "anonymous", "read", "forward/1/a", "--config", settings).code == 0


def test_the_file_of_the_settings_is_used(command: CommandLine, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f"access_rules = '{tmp_path / 'access.toml'}'\n")
    command("rule", "add", "x", *READS, "--config", settings)
    listed = command("rule", "list", "--config", settings, "--json").read(promised.RulesListed)
    assert (listed.file, len(listed.rules)) == (str(tmp_path / "access.toml"), 1)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("add", "x", "--who", "spark", "--may", "read", "--on", ""), 2, "'spark' is no identity"),
        (("add", "x", "--who", "*", "--may", "reed", "--on", ""), 2, "'reed' is no right"),
        (("add", "x", "--who", "*", "--on", ""), 2, "either `may` or `may_not`"),
        (("remove", "x"), 2, "cannot read the rules"),
        (("list",), 2, "cannot read the rules"),
        (("check", "token:a", "reed", "x"), 2, "'reed' is no right"),
        (("check", "alice", "read", "x"), 2, "'alice' is no identity"),
        (("check", "token:*", "read", "x"), 2, "is no identity"),
    ],
)
def test_mistakes_are_told_in_one_line(
    command: CommandLine, tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    assert expected in command("rule", *arguments, "--rules", tmp_path / "access.toml").failed(code)


def test_without_a_file_the_command_says_how_to_name_one(command: CommandLine) -> None:
    assert "say --rules FILE" in command("rule", "list").failed(2)
