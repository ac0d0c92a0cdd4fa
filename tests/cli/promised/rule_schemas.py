"""What `--json` promises of the commands `rule`, as `schemas` for the others."""

from __future__ import annotations

from tests.cli.promised.schemas import Strict


class RuleShown(Strict, frozen=True):
    name: str
    who: list[str]
    may: list[str]
    may_not: list[str]
    on: list[str]


class RuleChanged(RuleShown, frozen=True):
    file: str


class RulesListed(Strict, frozen=True):
    file: str
    rules: list[RuleShown]


class RuleChecked(Strict, frozen=True):
    """rule: the rule that decided; None where no rule allows it."""

    who: str
    right: str
    name: str
    allowed: bool
    rule: str | None


RULE_SCHEMAS: dict[str, type[Strict]] = {
    "rule add": RuleChanged,
    "rule list": RulesListed,
    "rule remove": RuleChanged,
    "rule check": RuleChecked,
}
