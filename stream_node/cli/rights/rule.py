"""The commands `stream-node rule add|list|remove|check`: change and explain the rules of a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stream_node.cli.options import ConfigOption, JsonOption
from stream_node.cli.output import columns, counted, say
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from ockam.identity.identity import Identity
    from ockam.identity.rules.rules import Rule

RulesOption = Annotated[
    Path | None,
    typer.Option("--rules", metavar="FILE", help="The file of the rules. Without it: that of the settings."),
]
PROVED: tuple[Literal["certificate"], Literal["token"], Literal["channel"]] = ("certificate", "token", "channel")
"""The ways in which a client can prove its name. In a rule, they stand before the name, as in `token:spark`."""
NameArgument = Annotated[str, typer.Argument(help="The name of the rule, by which refusals are explained.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Say who may do what on a node.", no_args_is_help=True)
    for name, command in (("add", add), ("list", list_all), ("remove", remove), ("check", check)):
        group.command(name)(command)
    app.add_typer(group, name="rule")


def add(
    name: NameArgument,
    who: Annotated[list[str], typer.Option(help="An identity, its beginning with a star, or *. May be repeated.")],
    on: Annotated[list[str], typer.Option(help='The beginning of names; "" for every name. May be repeated.')],
    may: Annotated[list[str] | None, typer.Option(help="A right that the rule allows. May be repeated.")] = None,
    may_not: Annotated[list[str] | None, typer.Option(help="A right that the rule forbids. May be repeated.")] = None,
    rules: RulesOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a rule to the file. A running node takes it within a second.

    Example: stream-node rule add reads --who certificate:spark --may read --may index --on orders --rules access.toml
    """
    from ockam.identity.rules.rule_file import add_rule, make_rule

    file = rules_file(rules, config)
    rule = make_rule(name, who, may or (), may_not or (), on)
    add_rule(file, rule)
    say(as_json, {**_row(rule), "file": str(file)}, f"{name!r} is in {file}")


def list_all(rules: RulesOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the rules, in the order of the file.

    Example: stream-node rule list --rules access.toml
    """
    from ockam.identity.rules.rule_file import load_rules

    file = rules_file(rules, config)
    found = [_row(rule) for rule in load_rules(file).rules]
    head = ("name", "who", "may", "may not", "on")
    rows = [tuple(each if isinstance(each, str) else " ".join(each) or "-" for each in row.values()) for row in found]
    text = columns([head, *rows]) if found else f"no rule in {file}: nothing is allowed"
    say(as_json, {"file": str(file), "rules": found}, text)


def remove(
    name: NameArgument, rules: RulesOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Remove a rule from the file. A running node takes the change within a second.

    Example: stream-node rule remove "spark reads" --rules access.toml
    """
    from ockam.identity.rules.rule_file import load_rules, remove_rule

    file = rules_file(rules, config)
    rule = remove_rule(file, name)
    left = len(load_rules(file))
    say(as_json, {**_row(rule), "file": str(file)}, f"{name!r} is removed; {counted(left, 'rule')} left")


def check(
    who: Annotated[str, typer.Argument(help="An identity: anonymous, certificate:NAME, token:NAME or channel:I….")],
    right: Annotated[str, typer.Argument(help="The name of a right, for example read.")],
    name: Annotated[str, typer.Argument(help="The name of a stream, consumer or chain, or a HOST:PORT.")],
    rules: RulesOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether the rules allow a right on a name to an identity, and which rule decides. Exit with 1 if not.

    Example: stream-node rule check certificate:spark read orders --rules access.toml
    """
    from ockam.identity.rules.rights import RIGHT_NAMES, Demand
    from ockam.identity.rules.rule_file import load_rules
    from ockam.identity.rules.rules import Rules
    from stream_node.node.block_services import KEEPERS

    if right not in RIGHT_NAMES:
        raise UsageError(f"{right!r} is no right; there are {', '.join(RIGHT_NAMES)}")
    identity = _identity(who)
    # What the node itself keeps is decided by built-in rules, beside those of the file.
    made = Rules([*KEEPERS, *load_rules(rules_file(rules, config)).rules])
    decision = made.decide(identity, Demand(RIGHT_NAMES[right], name))
    rule = decision.rule.name if decision.rule is not None else None
    if decision.allowed:
        text = f"allowed: {right} on {name!r} for {who}: rule {rule!r} allows it"
    else:
        text = f"refused: {decision.reason}"
    report = {"who": who, "right": right, "name": name, "allowed": decision.allowed, "rule": rule}
    say(as_json, report, text)
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
    raise UsageError(f"{text!r} is no identity: say anonymous, certificate:NAME, token:NAME or channel:IDENTIFIER")


def _row(rule: Rule) -> dict[str, str | list[str]]:
    from ockam.identity.rules.rights import RIGHT_NAMES

    may, may_not = (
        [name for name, each in RIGHT_NAMES.items() if each & rights] for rights in (rule.may, rule.may_not)
    )
    return {"name": rule.name, "who": list(rule.who), "may": may, "may_not": may_not, "on": list(rule.on)}


def rules_file(rules: Path | None, config: Path | None) -> Path:
    """Returns the file of the rules: the given one, or that of the settings. Raises UsageError, ConfigError."""
    from stream_node.node.config_sources import load_config

    if rules is not None:
        return rules
    file = load_config({}, file=config).access_rules
    if file is None:
        raise UsageError("no file of rules: say --rules FILE, or set access_rules (--config FILE)")
    return Path(file)
