"""Rules: what each identity is allowed to do on which stream, consumer, chain or other node. A node asks them for each
message.

    rules = load_rules(Path("access.toml"))
    decision = rules.decide(Identity("token", "spark"), Demand(Right.READ, "orders"))
    node.gate = Authorizer(node, rules, Audit(Path("audit.jsonl"), now_us))

- `Right` and `Demand` say what a message needs; `Rules` decide it; `load_rules` reads them from a file.
- `Tokens` decides which tokens are valid; `create_token` and `revoke_token` change their file.
- `Authorizer` is the gate of an `ockam.Node`: the node asks it before a worker gets a message. It answers refused
  messages, counts them and writes the `Audit` log.

This package does not decode messages: each worker says which right its messages demand, and on which name. Each public
name is imported on its first use, so a worker that needs only `Right` does not load the gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from access.audit import Audit
    from access.audit_lines import Entry
    from access.authorizer import AccessStatistics, Authorizer, Frequent, Guarded
    from access.rights import NOTHING, RIGHT_NAMES, SOMETHING, Demand, Right
    from access.rule_file import (
        RulesError,
        add_rule,
        change_rules,
        load_rules,
        make_rule,
        parse_rules,
        remove_rule,
        rule_text,
    )
    from access.rules import Decision, Grants, Rule, Rules
    from access.tokens import TokenFileError, TokenRecord, Tokens, create_token, load_tokens, revoke_token

__all__ = [
    "NOTHING",
    "RIGHT_NAMES",
    "SOMETHING",
    "AccessStatistics",
    "Audit",
    "Authorizer",
    "Decision",
    "Demand",
    "Entry",
    "Frequent",
    "Grants",
    "Guarded",
    "Right",
    "Rule",
    "Rules",
    "RulesError",
    "TokenFileError",
    "TokenRecord",
    "Tokens",
    "add_rule",
    "change_rules",
    "create_token",
    "load_rules",
    "load_tokens",
    "make_rule",
    "parse_rules",
    "remove_rule",
    "revoke_token",
    "rule_text",
]

_MODULES = {
    "AccessStatistics": "authorizer",
    "Audit": "audit",
    "Authorizer": "authorizer",
    "Decision": "rules",
    "Demand": "rights",
    "Entry": "audit_lines",
    "Frequent": "authorizer",
    "Grants": "rules",
    "Guarded": "authorizer",
    "NOTHING": "rights",
    "RIGHT_NAMES": "rights",
    "Right": "rights",
    "Rule": "rules",
    "Rules": "rules",
    "RulesError": "rule_file",
    "SOMETHING": "rights",
    "TokenFileError": "tokens",
    "TokenRecord": "tokens",
    "Tokens": "tokens",
    "add_rule": "rule_file",
    "change_rules": "rule_file",
    "create_token": "tokens",
    "load_rules": "rule_file",
    "load_tokens": "tokens",
    "make_rule": "rule_file",
    "parse_rules": "rule_file",
    "remove_rule": "rule_file",
    "revoke_token": "tokens",
    "rule_text": "rule_file",
}
"""For each public name, the module of this package that defines the name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
