"""A served node with rules, whose file a test writes, and whose audit log it reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.rule_file import rule_text
from ockam.identity.rules.rules import Rule
from tests.support.served import Served, served


class Guarded:
    """running: the node. Its rules are for anonymous peers, since tests connect without certificates and tokens."""

    def __init__(self, running: Served, folder: Path) -> None:
        self.running = running
        self._folder = folder

    def allow(self, *rules: Rule) -> None:
        """These rules are in force when the call returns; connections to which they mean a change are closed."""
        write_rules(self._folder / "access.toml", rules)
        self.running.server.reload()

    def audit(self) -> list[dict[str, Any]]:
        return read_audit(self._folder / "data" / "audit.jsonl")

    def refused(self) -> dict[str, int]:
        access = self.running.statistics().access
        assert access is not None
        return access.refused


def may(rights: Right, on: str = "", who: str = "anonymous", name: str = "may") -> Rule:
    return Rule(name, (who,), may=rights, on=(on,))


def forbid(on: str, name: str, who: str = "*") -> Rule:
    return Rule(name, (who,), may_not=ALL_RIGHTS, on=(on,))


def write_rules(file: Path, rules: Sequence[Rule]) -> None:
    file.write_text("\n".join(map(rule_text, rules)))


def read_audit(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@asynccontextmanager
async def guarded(folder: Path, *rules: Rule, **settings: Any) -> AsyncIterator[Guarded]:
    """A node with these rules."""
    write_rules(folder / "access.toml", rules)
    settings = {"access_rules": str(folder / "access.toml"), "error_delay_s": 0.01, **settings}
    async with served(folder / "data", **settings) as running:
        yield Guarded(running, folder)
