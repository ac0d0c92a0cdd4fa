"""Reads the limits of single identities from a file of rules. It enforces nothing.

    [limits."certificate:alice"]
    requests_per_second = 2_000
    connections_max = "unlimited"

The name of a table is a pattern of identities, as in `who` of a rule, or `anonymous:ADDRESS` for the peers of one
address. A limit that a table does not have is that of the node's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ockam.quotas.usage import ANONYMOUS_PREFIX, SETTING_PREFIX, find_address, find_network
from ockam.quotas.usage_machine import LIMIT_NAMES, OPEN_LIMITS

UNLIMITED_WORD = "unlimited"
LIMIT_MAX = 2**62

LimitTables = dict[str, dict[str, int | None]]
"""For each pattern of identities, the limits that differ from the settings, by name. None means no limit."""


def read_limits(value: Any, wrong_pattern: Callable[[str], str | None]) -> tuple[LimitTables, list[str]]:
    """Returns the limits of a file (`value`), and the mistakes. If there are mistakes, the limits must not be used."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        return {}, ['limits: is a table of tables; write [limits."certificate:alice"] and the limits below it']
    tables: LimitTables = {}
    mistakes: list[str] = []
    # All mistakes are collected, so that the operator can correct them together.
    for pattern, table in value.items():
        address = pattern.removeprefix(ANONYMOUS_PREFIX)
        if address == pattern or not (find_address(address) or find_network(address)):
            wrong = wrong_pattern(pattern)
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
