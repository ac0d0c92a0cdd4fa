"""The commands `stream-node token create|list|revoke`: make, list and revoke the tokens of clients."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.options import ANY_DIRECTORY, DirectoryOptions
from stream_node.cli.output import AS_JSON, columns, counted, say, tell
from stream_node.cli.rights.rule import RulesOption, RulesOptions
from stream_node.cli.values import UsageError, parse_end, time_text, utc_now

if TYPE_CHECKING:
    from ockam.identity.rules.rules import Rule
    from ockam.identity.rules.tokens import TokenRecord

NameArgument = Annotated[str, typer.Argument(), "The name of the token. Its identity in rules is token:NAME."]


def create(
    name: NameArgument,
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
    from ockam.identity.rules.tokens import check_name, create_token, load_tokens

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
        # The rules come first: a token without them would have no rights, and would not be shown if they failed.
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
    report = {**_row(record, now_s), "rules": [rule.name for rule in made], "store": str(store)}
    shown = {"token": text} if file is None else {"file": str(file)}
    say(report | shown, text if file is None else f"the token {name} is in {file}")
    if not AS_JSON.get():
        tell(
            "the token is shown this once only; the node does not store it" if file is None else "keep this file secret"
        )


def list_all(
    everything: Annotated[bool, typer.Option("--all"), "List revoked tokens, too. They are kept 30 days."] = False,
    directory: DirectoryOptions = ANY_DIRECTORY,
) -> None:
    """List the tokens of a node, the oldest first. The tokens themselves are stored nowhere and cannot be shown.

    Example: stream-node token list --data-dir ./data
    """
    from ockam.identity.rules.tokens import load_tokens

    store, now_s = _store(directory), int(time.time())
    rows = [_row(each, now_s) for each in load_tokens(store) if everything or each.revoked_s is None]
    head = ("name", "state", "created", "expires", "revoked")
    cells = [tuple(str(row[part] or "-") for part in head) for row in rows]
    say({"tokens": rows, "store": str(store)}, columns([head, *cells]) if rows else "no tokens")


def revoke(name: NameArgument, rules: RulesOption = None, directory: DirectoryOptions = ANY_DIRECTORY) -> None:
    """Revoke a token. A running node closes its connections within about a second.

    Rules that `token create` has made for it are removed. If no file of rules is known, the command says so.

    Example: stream-node token revoke spark --data-dir ./data
    """
    from ockam.identity.rules.tokens import revoke_token

    if rules is not None and not rules.is_file():
        raise UsageError(f"there is no file {rules}; give --rules the file of the node's rules, or leave it out")
    store, now_s = _store(directory), int(time.time())
    where = RulesOptions(rules, directory.config).known_file()
    # The token comes first: whatever is wrong with the rules, it must not be of use any more.
    record = revoke_token(store, name, now_s)
    removed = [] if where is None else _remove_made_rules(where, name)
    what = f"the token {name} is revoked" + (f"; {counted(len(removed), 'rule')} removed" if removed else "")
    report = {**_row(record, now_s), "rules_file": None if where is None else str(where)}
    say({**report, "rules_removed": removed, "store": str(store)}, what)
    if where is None and not AS_JSON.get():
        tell("its rules, if it has any, are still there: no file of rules is known; remove them with `rule remove`")


def _rules_of(name: str, allow: list[str] | tuple[()]) -> list[Rule]:
    """Returns the rules that give a token these rights. Raises UsageError, RulesError."""
    from ockam.identity.rules.rule_file import make_rule

    prefixes: dict[str, list[str]] = {}
    for text in allow:
        right, colon, prefix = text.partition(":")
        if not colon or not right:
            raise UsageError(f"--allow {text!r} is not RIGHT:PREFIX, such as read:orders; read: is all names")
        prefixes.setdefault(right, []).append(prefix)
    return [
        make_rule(f"{_beginning(name)}{right}", [f"token:{name}"], [right], [], on) for right, on in prefixes.items()
    ]


def _beginning(name: str) -> str:
    return f"token {name} may "


def _write_rules(file: Path, name: str, made: list[Rule], replace: bool) -> None:
    """Writes the rules of a new token. replace: those of an older token of this name are removed in the same step."""
    from ockam.identity.rules.rule_file import change_rules, load_rules

    there = {rule.name: rule for rule in load_rules(file).rules} if file.exists() else {}
    # An interrupted command may have written the same rules.
    new = [rule for rule in made if there.get(rule.name) != rule]
    others = [rule.name for rule in new if rule.name in there]
    if others and not replace:
        raise UsageError(f"{file} has another rule {others[0]!r} already; remove it, or say --replace")
    older = [rule.name for rule in _made_rules(file, name) if rule not in made] if replace else []
    change_rules(file, dict.fromkeys([*others, *older]), new)


def _made_rules(file: Path, name: str) -> list[Rule]:
    from ockam.identity.rules.rule_file import load_rules

    who, beginning = (f"token:{name}",), _beginning(name)
    found = load_rules(file).rules if file.exists() else ()
    return [rule for rule in found if rule.who == who and rule.name.startswith(beginning)]


def _remove_made_rules(file: Path, name: str) -> list[str]:
    """Removes the rules that `token create` has written for a revoked token. Returns their names. Raises RulesError."""
    from ockam.identity.rules.rule_file import RulesError, change_rules

    try:
        removed = [rule.name for rule in _made_rules(file, name)]
        if removed:
            change_rules(file, removed, ())
    except RulesError as error:
        first, *others = error.mistakes
        raise RulesError(f"the token {name} is revoked, but its rules are still there: {first}", *others) from error
    except OSError as error:
        raise RulesError(
            f"the token {name} is revoked, but its rules are still there: cannot change {file}: {error.strerror}"
        ) from error
    return removed


def _row(record: TokenRecord, now_s: int) -> dict[str, Any]:
    times = {"created": record.created_s, "expires": record.expires_s, "revoked": record.revoked_s}
    shown = {part: None if each is None else time_text(each * 1_000_000) for part, each in times.items()}
    state = record.state(now_s).name.lower()
    return {"name": record.name, "state": "valid" if state == "ok" else state, **shown, "sha256": record.sha256}


def _store(directory: DirectoryOptions) -> Path:
    from stream_node.node.identity.token_services import token_file

    return token_file(directory.load().data_dir)
