"""Goal: limits in a file of rules are taken as written, or all mistakes are told. Method: files with each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.identity.rules.rights import Right
from ockam.identity.rules.rule_file import RulesError, change_rules, parse_rules
from ockam.identity.rules.rules import Rule

FILE = """
[limits."certificate:alice"]
requests_per_second = 2_000
connections_max = "unlimited"

[[rule]]
name = "one"
who = ["*"]
may = "read"
on = ""

[limits."anonymous:2001:db8::/64"]
channels_max = 0

[limits."anonymous:192.0.2.7"]
streams_per_hour = 1
"""
LIMITS = {
    "certificate:alice": {"requests_per_second": 2_000, "connections_max": None},
    "anonymous:2001:db8::/64": {"channels_max": 0},
    "anonymous:192.0.2.7": {"streams_per_hour": 1},
}


def test_limits_stand_beside_rules() -> None:
    rules = parse_rules(FILE)
    assert (rules.limits, [rule.name for rule in rules.rules]) == (LIMITS, ["one"])


def test_rules_are_added_and_removed_beside_limits(tmp_path: Path) -> None:
    """A rule ends where limits begin, so removing it keeps them."""
    file = tmp_path / "access.toml"
    file.write_text(FILE)
    change_rules(file, (), (Rule("two", ("*",), may=Right.WRITE),))
    change_rules(file, ("one",), ())
    found = parse_rules(file.read_text())
    assert (found.limits, [rule.name for rule in found.rules]) == (LIMITS, ["two"])


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("limits = 3", "is a table of tables"),
        ("[limits]\nconnections_max = 3", "is a table of tables"),
        ('[limits."alice"]', "'alice' is no identity"),
        ('[limits."anonymous:here"]', "'anonymous:here' is no identity"),
        ('[limits."anonymous:2001:db8::/48"]', "is no identity"),
        ('[limits."local:node"]', "built in"),
        ('[limits."*"]\nconnections = 3', "connections: is no limit; there are connections_max,"),
        ('[limits."*"]\nidentity_connections_max = 3', "leave out the beginning"),
        ('[limits."*"]\nconnections_max = -1', "-1 is not a whole number from 0"),
        ('[limits."*"]\nrequests_per_second = 0', "0 is not a whole number from 1"),
        ('[limits."*"]\nrequests_per_second = 1.5', "1.5 is not a whole number"),
        ('[limits."*"]\nrequests_per_second = true', "True is not a whole number"),
        ('[limits."*"]\nrequests_per_second = "many"', "'many' is not a whole number"),
    ],
)
def test_mistakes_are_told(text: str, mistake: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse_rules(text, "access.toml")
    assert any(mistake in each and each.startswith("access.toml") for each in caught.value.mistakes)
