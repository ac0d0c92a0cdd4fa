"""The commands `stream-node rule` (change and explain the rules of a node) and `token` (make and revoke tokens)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from stream_node.cli.options import ANY_DIRECTORY, RUNS, ConfigOption, DirectoryOptions
from stream_node.cli.output import AS_JSON, columns, counted, say, tell
from stream_node.cli.values import UsageError, parse_end, time_text, utc_now

if TYPE_CHECKING or RUNS:
    from ockam.identity.identity import ANONYMOUS, Identity
    from ockam.identity.rules.rights import RIGHT_NAMES, Demand
    from ockam.identity.rules.rule_file import RulesError, change_rules, load_rules, make_rule
    from ockam.identity.rules.rules import Rule, Rules
    from ockam.identity.rules.tokens import TokenRecord, check_name, create_token, load_tokens, revoke_token
    from stream_node.node.config_sources import load_config
    from stream_node.node.identity.token_services import token_file
    from stream_node.node.keepers import keepers_of

RulesOption = Annotated[Path | None, "FILE", "The file of the rules. Without it: that of the settings."]


class RulesOptions(NamedTuple):
    rules: RulesOption = None
    config: ConfigOption = None

    def known_file(self) -> Path | None:
        """Returns the file of the rules: the given one, or that of the settings, if any."""
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
    file = rules.file()
    rule = make_rule(name, who, may or (), may_not or (), on)
    change_rules(file, (), (rule,))
    say({**_row(rule), "file": str(file)}, f"{name!r} is in {file}")


def list_all(rules: RulesOptions = KNOWN_RULES) -> None:
    """List the rules, in the order of the file.

    Example: stream-node rule list --rules access.toml
    """
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
    file = rules.file()
    (rule,) = change_rules(file, (name,), ())
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
    if right not in RIGHT_NAMES:
        raise UsageError(f"{right!r} is no right; there are {', '.join(RIGHT_NAMES)}")
    identity = _identity(who)
    # A node also has built-in rules that protect its own streams. The settings decide which of them it has.
    made = Rules([*keepers_of(load_config({}, file=rules.config)), *load_rules(rules.file()).rules])
    decision = made.decide(identity, Demand(RIGHT_NAMES[right], name))
    rule = decision.rule.name if decision.rule is not None else None
    allowed = f"allowed: {right} on {name!r} for {who}: rule {rule!r} allows it"
    report = {"who": who, "right": right, "name": name, "allowed": decision.allowed, "rule": rule}
    say(report, allowed if decision.allowed else f"refused: {decision.reason}")
    if not decision.allowed:
        raise typer.Exit(1)


def _identity(text: str) -> Identity:
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
    may, may_not = (
        [name for name, each in RIGHT_NAMES.items() if each & rights] for rights in (rule.may, rule.may_not)
    )
    return {"name": rule.name, "who": list(rule.who), "may": may, "may_not": may_not, "on": list(rule.on)}


TokenArgument = Annotated[str, typer.Argument(), "The name of the token. Its identity in rules is token:NAME."]


def create(
    name: TokenArgument,
    allow: Annotated[
        list[str] | None,
        "RIGHT:PREFIX",
        "A right, and the beginning of the names on which the token has it. May be repeated.",
    ] = None,
    expires: Annotated[str | None, "WHEN", "When the token ends: after a time (90d), or at one (2027-01-01Z)."] = None,
    replace: Annotated[
        bool, "Revoke the token that has this name. With --allow, its rights are replaced; without, they stay."
    ] = False,
    file: Annotated[Path | None, "FILE", "Write the token to a new file that only you can read."] = None,
    rules: RulesOption = None,
    directory: DirectoryOptions = ANY_DIRECTORY,
) -> None:
    """Make a token and print it once; the node stores only its hash. A running node takes it within a second.

    Example: stream-node token create spark --allow read:orders --allow index:spark- --expires 90d --file spark.token
    """
    store, now_s = _store(directory), int(time.time())
    # Everything that can be wrong is found before anything is written.
    check_name(name)
    expires_s = None if expires is None else int(parse_end(expires, utc_now()).timestamp())
    made = _rules_of(name, allow or ())
    where = RulesOptions(rules, directory.config).file() if made else None
    if any(each.name == name and each.revoked_s is None for each in load_tokens(store)) and not replace:
        # `create_token` makes the same check again, while the file is locked.
        raise UsageError(f"there is a token {name!r} already; revoke it, say --replace, or choose another name")
    descriptor = None if file is None else os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # The rules are written first: if this fails, no token is stored that has no rights and was never shown.
        if where is not None:
            _write_rules(where, name, made, replace)
        text, record = create_token(store, name, now_s, expires_s, replace=replace)
    except BaseException:
        if file is not None:
            file.unlink()
        raise
    if descriptor is not None:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text + "\n")
            opened.flush()
            os.fsync(descriptor)
    report = {**_token_row(record, now_s), "rules": [rule.name for rule in made], "store": str(store)}
    shown = {"token": text} if file is None else {"file": str(file)}
    say(report | shown, text if file is None else f"the token {name} is in {file}")
    if not AS_JSON.get():
        tell(
            "the token is shown this once only; the node does not store it" if file is None else "keep this file secret"
        )


def list_tokens(
    everything: Annotated[bool, typer.Option("--all"), "List revoked tokens, too. They are kept 30 days."] = False,
    directory: DirectoryOptions = ANY_DIRECTORY,
) -> None:
    """List the tokens of a node, the oldest first. The tokens themselves are stored nowhere and cannot be shown.

    Example: stream-node token list --data-dir ./data
    """
    store, now_s = _store(directory), int(time.time())
    rows = [_token_row(each, now_s) for each in load_tokens(store) if everything or each.revoked_s is None]
    head = ("name", "state", "created", "expires", "revoked")
    cells = [tuple(str(row[part] or "-") for part in head) for row in rows]
    say({"tokens": rows, "store": str(store)}, columns([head, *cells]) if rows else "no tokens")


def revoke(name: TokenArgument, rules: RulesOption = None, directory: DirectoryOptions = ANY_DIRECTORY) -> None:
    """Revoke a token. A running node closes its connections within about a second.

    Rules that `token create` has made for it are removed. If no file of rules is known, the command says so.

    Example: stream-node token revoke spark --data-dir ./data
    """
    if rules is not None and not rules.is_file():
        raise UsageError(f"there is no file {rules}; give --rules the file of the node's rules, or leave it out")
    store, now_s = _store(directory), int(time.time())
    where = RulesOptions(rules, directory.config).known_file()
    # The token is revoked first: it must lose its effect even if the rules cannot be changed.
    record = revoke_token(store, name, now_s)
    removed: list[str] = []
    try:
        if where is not None and (removed := [rule.name for rule in _made_rules(where, name)]):
            change_rules(where, removed, ())
    except (RulesError, OSError) as error:
        known = error.mistakes if isinstance(error, RulesError) else [f"cannot change {where}: {error.strerror}"]
        first, *others = known
        raise RulesError(f"the token {name} is revoked, but its rules are still there: {first}", *others) from error
    what = f"the token {name} is revoked" + (f"; {counted(len(removed), 'rule')} removed" if removed else "")
    report = {**_token_row(record, now_s), "rules_file": None if where is None else str(where)}
    say({**report, "rules_removed": removed, "store": str(store)}, what)
    if where is None and not AS_JSON.get():
        tell("its rules, if it has any, are still there: no file of rules is known; remove them with `rule remove`")


def _rules_of(name: str, allow: Sequence[str]) -> list[Rule]:
    """Returns the rules that give a token these rights. Raises UsageError, RulesError."""
    prefixes: dict[str, list[str]] = {}
    for text in allow:
        right, colon, prefix = text.partition(":")
        if not colon or not right:
            raise UsageError(f"--allow {text!r} is not RIGHT:PREFIX, such as read:orders; read: is all names")
        prefixes.setdefault(right, []).append(prefix)
    who = [f"token:{name}"]
    return [make_rule(f"token {name} may {right}", who, [right], [], on) for right, on in prefixes.items()]


def _write_rules(file: Path, name: str, made: list[Rule], replace: bool) -> None:
    """Writes the rules of a new token. replace: those of an older token of this name are removed in the same step."""
    there = {rule.name: rule for rule in load_rules(file).rules} if file.exists() else {}
    # An interrupted command may have written the same rules.
    new = [rule for rule in made if there.get(rule.name) != rule]
    others = [rule.name for rule in new if rule.name in there]
    if others and not replace:
        raise UsageError(f"{file} has another rule {others[0]!r} already; remove it, or say --replace")
    older = [rule.name for rule in _made_rules(file, name) if rule not in made] if replace else []
    change_rules(file, dict.fromkeys([*others, *older]), new)


def _made_rules(file: Path, name: str) -> list[Rule]:
    """Returns the rules that `token create` has written for a token."""
    who, beginning = (f"token:{name}",), f"token {name} may "
    found = load_rules(file).rules if file.exists() else ()
    return [rule for rule in found if rule.who == who and rule.name.startswith(beginning)]


def _token_row(record: TokenRecord, now_s: int) -> dict[str, Any]:
    times = {"created": record.created_s, "expires": record.expires_s, "revoked": record.revoked_s}
    shown = {part: None if each is None else time_text(each * 1_000_000) for part, each in times.items()}
    state = record.state(now_s).name.lower()
    return {"name": record.name, "state": "valid" if state == "ok" else state, **shown, "sha256": record.sha256}


def _store(directory: DirectoryOptions) -> Path:
    return token_file(directory.load().data_dir)
