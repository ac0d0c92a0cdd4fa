"""What `--json` promises of the command `health`, as `schemas` for the others."""

from __future__ import annotations

from typing import Any

from tests.cli.promised.schemas import Strict


class Health(Strict, frozen=True):
    address: str
    asked: str
    ok: bool
    reasons: list[str]


HEALTH_SCHEMAS: dict[str, Any] = {"health": Health}
