"""What `--json` promises, command by command: these fields, of these types, and no other."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is missing, unknown or of another type is an error."""


class Verified(Strict, frozen=True):
    ok: bool
    streams: int
    messages: int
    bytes: int
    problems: list[str]
    problem_count: int


class BackedUp(Strict, frozen=True):
    backup: str
    data_dir: str
    streams: int
    messages: int
    bytes: int
    database_bytes: int
    sha256: str
    created_us: int
    verified: bool
    seconds: float


class Restored(Strict, frozen=True):
    backup: str
    data_dir: str
    streams: int
    messages: int
    bytes: int
    created_us: int
    verified: bool
    dry_run: bool
    replaced: bool
    replaced_streams: int | None
    replaced_messages: int | None


class Setting(Strict, frozen=True):
    name: str
    value: Any
    origin: Literal["flag", "environment", "file", "default"]
    where: str | None


class Finding(Strict, frozen=True):
    check: str
    status: Literal["ok", "warning", "wrong"]
    text: str
    values: dict[str, int | float | str | None]


class Examined(Strict, frozen=True):
    ok: bool
    findings: list[Finding]
    settings: list[Setting]


class ConfigChecked(Strict, frozen=True):
    ok: bool
    settings: int
    given: int


class ConfigShown(Strict, frozen=True):
    settings: list[Setting]


class ContextAdded(Strict, frozen=True):
    name: str
    address: str
    via: list[str]
    current: bool


class ContextsListed(Strict, frozen=True):
    contexts: list[ContextAdded]


class ContextUsed(Strict, frozen=True):
    current: str | None


class ContextRemoved(Strict, frozen=True):
    removed: str
    current: str | None
