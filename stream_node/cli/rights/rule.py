"""The commands `stream-node rule add|list|remove|check`: change and explain the rules of a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from stream_node.cli.options import ConfigOption
from stream_node.cli.output import columns, counted, say
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from ockam.identity.identity import Identity
    from ockam.identity.rules.rules import Rule

RulesOption = Annotated[Path | None, "FILE", "The file of the rules. Without it: that of the settings."]


class RulesOptions(NamedTuple):
    rules: RulesOption = None
    config: ConfigOption = None

    def known_file(self) -> Path | None:
        """Returns the file of the rules: the given one, or that of the settings, if any."""
        from stream_node.node.config_sources import load_config

        file = self.rules or load_config({}, file=self.config).access_rules
        return None if file is None else Path(file)

    def file(self) -> Path:
        file = self.known_file()
        if file is None:
            raise UsageError("no file of rules: say --rules FILE, or set access_rules (--config FILE)")
        return file


KNOWN_RULES = RulesOptions()
PROVED: tuple[Literal["certificate", "token", "channel", "worker"], ...] = ("certificate", "token", "channel", "worker")
"""The ways in which a client can prove its name. In a rule, they stand before the name, as in `token:spark`."""
NameArgument = Annotated[str, typer.Argument(), "The name of the rule, by which refusals are explained."]


def add(
    name: NameArgument,
    who: Annotated[list[str], "An identity, its beginning with a star, or *. May be repeated."],
    on: Annotated[list[str], 'The beginning of names; "" for every name. May be repeated.'],
    may: Annotated[list[str] | None, "A right that the rule allows. May be repeated."] = None,
    may_not: Annotated[list[str] | None, "A right that the rule forbids. May be repeated."] = None,
    rules: RulesOptions = KNOWN_RULES,
) -> None:
    """Add a rule to the file. A running node takes it within a second.

    Example: stream-node rule add reads --who certificate:spark --may read --may index --on orders --rules access.toml
    """
    from ockam.identity.rules.rule_file import add_rule, make_rule

    file = rules.file()
    rule = make_rule(name, who, may or (), may_not or (), on)
    add_rule(file, rule)
    say({**_row(rule), "file": str(file)}, f"{name!r} is in {file}")


def list_all(rules: RulesOptions = KNOWN_RULES) -> None:
    """List the rules, in the order of the file.

    Example: stream-node rule list --rules access.toml
    """
    from ockam.identity.rules.rule_file import load_rules

    file = rules.file()
    found = [_row(rule) for rule in load_rules(file).rules]
    head = ("name", "who", "may", "may not", "on")
    rows = [tuple(each if isinstance(each, str) else " ".join(each) or "-" for each in row.values()) for row in found]
    text = columns([head, *rows]) if found else f"no rule in {file}: nothing is allowed"
    say({"file": str(file), "rules": found}, text)


def remove(name: NameArgument, rules: RulesOptions = KNOWN_RULES) -> None:
    """Remove a rule from the file. A running node takes the change within a second.

    Example: stream-node rule remove "spark reads" --rules access.toml
    """
    from ockam.identity.rules.rule_file import load_rules, remove_rule

    file = rules.file()
    rule = remove_rule(file, name)
    left = len(load_rules(file))
    say({**_row(rule), "file": str(file)}, f"{name!r} is removed; {counted(left, 'rule')} left")


def check(
    who: Annotated[
        str, typer.Argument(), "An identity: anonymous, certificate:NAME, token:NAME, channel:I… or worker:ADDRESS."
    ],
    right: Annotated[str, typer.Argument(), "The name of a right, for example read."],
    name: Annotated[
        str, typer.Argument(), "The name of a stream, consumer or chain, a HOST:PORT, or the address of a worker."
    ],
    rules: RulesOptions = KNOWN_RULES,
) -> None:
    """Say whether the rules allow a right on a name to an identity, and which rule decides. Exit with 1 if not.

    Example: stream-node rule check certificate:spark read orders --rules access.toml
    """
    from ockam.identity.rules.rights import RIGHT_NAMES, Demand
    from ockam.identity.rules.rule_file import load_rules
    from ockam.identity.rules.rules import Rules
    from stream_node.node.config_sources import load_config
    from stream_node.node.keepers import keepers_of

    if right not in RIGHT_NAMES:
        raise UsageError(f"{right!r} is no right; there are {', '.join(RIGHT_NAMES)}")
    identity = _identity(who)
    # A node also has built-in rules that protect its own streams. The settings decide which of them it has.
    made = Rules([*keepers_of(load_config({}, file=rules.config)), *load_rules(rules.file()).rules])
    decision = made.decide(identity, Demand(RIGHT_NAMES[right], name))
    rule = decision.rule.name if decision.rule is not None else None
    if decision.allowed:
        text = f"allowed: {right} on {name!r} for {who}: rule {rule!r} allows it"
    else:
        text = f"refused: {decision.reason}"
    report = {"who": who, "right": right, "name": name, "allowed": decision.allowed, "rule": rule}
    say(report, text)
    if not decision.allowed:
        raise typer.Exit(1)


def _identity(text: str) -> Identity:
    from ockam.identity.identity import ANONYMOUS, Identity

    source, _, name = text.partition(":")
    if text == "anonymous":
        return ANONYMOUS
    for each in PROVED:
        if source == each and name and not name.endswith("*"):
            return Identity(each, name)
    raise UsageError(
        f"{text!r} is no identity: say anonymous, certificate:NAME, token:NAME, channel:IDENTIFIER or worker:ADDRESS"
    )


def _row(rule: Rule) -> dict[str, str | list[str]]:
    from ockam.identity.rules.rights import RIGHT_NAMES

    may, may_not = (
        [name for name, each in RIGHT_NAMES.items() if each & rights] for rights in (rule.may, rule.may_not)
    )
    return {"name": rule.name, "who": list(rule.who), "may": may, "may_not": may_not, "on": list(rule.on)}
