"""Reads and changes the file with the rules of a node. It decides nothing.

    [[rule]]
    name = "spark reads orders"
    who = ["token:spark"]
    may = ["read", "index"]
    on = ["orders"]

    [limits."certificate:alice"]
    requests_per_second = 2_000
    connections_max = "unlimited"

Each rule has either `may` or `may_not`. The file may also have limits of single identities, named by a pattern as in
`who`, or by `anonymous:ADDRESS` for the peers of one address. The settings have the other limits. A change keeps the
other lines of the file, with their comments."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from ockam.files.durable_files import lock_folder, write_durably
from ockam.files.parsing import ParseError, parse_toml
from ockam.identity.rules.rights import ALL_RIGHTS, NO_RIGHT, RIGHT_NAMES, Right
from ockam.identity.rules.rules import EVERYBODY, Rule, Rules
from ockam.quotas.limits import LIMIT_NAMES, OPEN_LIMITS
from ockam.quotas.usage import ANONYMOUS_PREFIX, SETTING_PREFIX, find_address, find_network

NAME_CHARACTERS_MAX = 64
SOURCES = ("anonymous", "certificate", "token", "channel", "worker")
ALL = "all"
_HEADER = re.compile(r"\s*\[\[\s*rule\s*\]\]\s*(#.*)?")
_TABLE = re.compile(r"\s*\[")
_FIELDS = ("name", "who", "may", "may_not", "on")
_QUOTES = frozenset("'\"\\")
UNLIMITED_WORD = "unlimited"
LIMIT_MAX = 2**62

LimitTables = dict[str, dict[str, int | None]]
"""For each pattern of identities, the limits that differ from the settings, by name. None means no limit."""


class RulesError(Exception):
    """Error: a file of rules is not valid.

    mistakes: one text for each mistake, with the file, the line where its rule begins, and the name of the rule."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def load_rules(file: Path) -> Rules:
    """Reads the rules of a file. Raises RulesError with all mistakes."""
    return parse_rules(_read(file), str(file))


def parse_rules(text: str, file: str = "the rules") -> Rules:
    try:
        values = parse_toml(text)
    except ParseError as error:
        raise RulesError(f"{file} is not TOML: {error}") from error
    mistakes = [
        f"{file}: unknown key {key!r}; a file of rules has only tables [[rule]] and [limits.…]"
        for key in values.keys() - {"rule", "limits"}
    ]
    limits, wrong = _limits(values.get("limits", {}))
    mistakes += [f"{file}: {each}" for each in wrong]
    tables = values.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RulesError(*mistakes, f"{file}: `rule` is not a list of tables; begin each rule with [[rule]]")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.fullmatch(line)]
    rules: list[Rule] = []
    for position, table in enumerate(tables):
        # Rules in another notation, such as `rule = [{…}]`, have no line of their own.
        line = f" line {lines[position]}" if len(lines) == len(tables) else ""
        where = f"{file}{line}, rule {table.get('name', position + 1)!r}"
        rule, wrong = _rule(table)
        mistakes += [f"{where}: {each}" for each in wrong]
        if any(rule.name == other.name for other in rules):
            mistakes.append(f"{where}: another rule has the same name; refusals name rules, so choose another one")
        rules.append(rule)
    if mistakes:
        raise RulesError(*mistakes)
    return Rules(rules, limits)


def rule_text(rule: Rule) -> str:
    may, word = (rule.may, "may") if rule.may else (rule.may_not, "may_not")
    rights = [ALL] if may == ALL_RIGHTS else [name for name, right in RIGHT_NAMES.items() if right & may]
    fields: dict[str, Any] = {"name": rule.name, "who": list(rule.who), word: rights, "on": list(rule.on)}
    # JSON texts and lists of texts are TOML too, as long as characters beyond the basic plane are not escaped.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return "\n".join(["[[rule]]", *lines]) + "\n"


def make_rule(name: str, who: Sequence[str], may: Sequence[str], may_not: Sequence[str], on: Sequence[str]) -> Rule:
    table = {"name": name, "who": list(who), "on": list(on)}
    rule, mistakes = _rule(
        table | ({"may": list(may)} if may else {}) | ({"may_not": list(may_not)} if may_not else {})
    )
    if mistakes:
        raise RulesError(*(f"rule {name!r}: {each}" for each in mistakes))
    return rule


def change_rules(file: Path, removed: Collection[str], added: Iterable[Rule]) -> list[Rule]:
    """Removes rules by name and appends others, in one step. Returns the removed rules. Raises RulesError, OSError.

    The file is made if it is missing and no rule is removed."""
    with lock_folder(file.parent):
        text = _read(file) if removed or file.exists() else ""
        gone: list[Rule] = []
        for name in removed:
            text, rule = _without(text, file, name)
            gone.append(rule)
        for each in added:
            text += ("" if not text else "\n" if text.endswith("\n") else "\n\n") + rule_text(each)
        # A change that would make the file invalid fails here, before anything is written.
        parse_rules(text, str(file))
        write_durably(file, text.encode())
        return gone


def _without(text: str, file: Path, name: str) -> tuple[str, Rule]:
    found = parse_rules(text, str(file))
    rules = found.rules
    position = next((place for place, rule in enumerate(rules) if rule.name == name), None)
    if position is None:
        raise RulesError(
            f"{file} has no rule {name!r}; it has {', '.join(repr(rule.name) for rule in rules) or 'none'}"
        )
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\r\n"))]
    left = text
    if len(starts) == len(rules):
        # The rule ends where the next table begins, which may be one with limits.
        later = range(starts[position] + 1, len(lines))
        end = next((number for number in later if _TABLE.match(lines[number])), len(lines))
        left = "".join(lines[: starts[position]] + lines[end:])
    # The remaining text must have exactly the other rules; otherwise the file has another notation.
    kept = parse_rules(left, str(file))
    if kept.rules != (*rules[:position], *rules[position + 1 :]) or kept.limits != found.limits:
        raise RulesError(f"{file} is written in a way that this command cannot change; remove {name!r} by hand")
    return left, rules[position]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"cannot read the rules {error}") from error


def _rule(table: dict[str, Any]) -> tuple[Rule, list[str]]:
    """Returns the rule of one table, and the mistakes in it. If there are mistakes, the rule must not be used."""
    mistakes = [f"unknown key {key!r}; a rule has {', '.join(_FIELDS)}" for key in table if key not in _FIELDS]
    # All mistakes are collected, so that the operator can correct them together.
    name = table.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        mistakes.append(f"name: {name!r} is not 1 to {NAME_CHARACTERS_MAX} printable characters")
    elif not _QUOTES.isdisjoint(name):
        mistakes.append("name: has a quotation mark or a backslash, and refusals quote the name")
    who = _texts(table, "who", mistakes)
    mistakes += [f"who: {each!r}: a star stands at the end only" for each in who if "*" in each[:-1]]
    mistakes += [each for pattern in who if (each := _wrong_pattern(pattern))]
    if ("may" in table) == ("may_not" in table):
        mistakes.append("has to have either `may` or `may_not`; write two rules to allow and to forbid")
    may, may_not = (_rights(table, field, mistakes) if field in table else NO_RIGHT for field in ("may", "may_not"))
    on = _texts(table, "on", mistakes)
    mistakes += [
        f"on: {each!r}: a star means nothing here, since `on` is the beginning of names; write what stands before it"
        for each in on
        if "*" in each
    ]
    return Rule(str(name), who, may, may_not, on), mistakes


def _texts(table: dict[str, Any], field: str, mistakes: list[str]) -> tuple[str, ...]:
    value = table.get(field)
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(each, str) for each in values):
        empty = ' (on = [""] means every name)' if field == "on" else ""
        mistakes.append(f"{field}: {value!r} is not a text, or a list of at least one text{empty}")
        return ()
    return tuple(values)


def _rights(table: dict[str, Any], field: str, mistakes: list[str]) -> Right:
    rights = NO_RIGHT
    for name in _texts(table, field, mistakes):
        right = ALL_RIGHTS if name == ALL else RIGHT_NAMES.get(name)
        if right is None:
            mistakes.append(f"{field}: {name!r} is no right; there are {', '.join((*RIGHT_NAMES, ALL))}")
        else:
            rights |= right
    return rights


def _wrong_pattern(pattern: str) -> str | None:
    source, colon, name = pattern.partition(":")
    if pattern in (EVERYBODY, "anonymous") or (source in SOURCES[1:] and colon and name):
        return None
    if source == "local":
        return f"who: {pattern!r}: rules for this node's own workers are built in"
    return f"who: {pattern!r} is no identity; write *, anonymous, or one of {', '.join(SOURCES[1:])} with :NAME or :*"


def _limits(value: Any) -> tuple[LimitTables, list[str]]:
    """Returns the limits of a file (`value`), and the mistakes. If there are mistakes, the limits must not be used."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        return {}, ['limits: is a table of tables; write [limits."certificate:alice"] and the limits below it']
    tables: LimitTables = {}
    mistakes: list[str] = []
    # All mistakes are collected, so that the operator can correct them together.
    for pattern, table in value.items():
        address = pattern.removeprefix(ANONYMOUS_PREFIX)
        if address == pattern or not (find_address(address) or find_network(address)):
            wrong = _wrong_pattern(pattern)
            mistakes += [f"[limits.{pattern!r}]: {wrong.removeprefix('who: ')}"] if wrong else []
        limits: dict[str, int | None] = {}
        for name, limit in table.items():
            try:
                limits[name] = _limit(name, limit)
            except ValueError as error:
                mistakes.append(f"[limits.{pattern!r}] {name}: {error}")
        tables[pattern] = limits
    return tables, mistakes


def _limit(name: str, value: Any) -> int | None:
    if name not in LIMIT_NAMES:
        hint = "; leave out the beginning" if name.removeprefix(SETTING_PREFIX) in LIMIT_NAMES else ""
        raise ValueError(f"is no limit; there are {', '.join(LIMIT_NAMES)}{hint}")
    if value == UNLIMITED_WORD:
        return None
    # Nothing may be open under a limit of 0. A rate of 0 would stop the identity without a word.
    least = 0 if name in OPEN_LIMITS else 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LIMIT_MAX:
        raise ValueError(f'{value!r} is not a whole number from {least}, or "{UNLIMITED_WORD}"')
    return value
