"""What `--json` promises of the command `status`, as `schemas` for the others."""

from __future__ import annotations

from typing import Any, Literal

from tests.cli.schemas import Strict


class StatusConsumer(Strict, frozen=True):
    client_id: str
    stream: str
    lag: int
    saved: str


class StatusCheck(Strict, frozen=True):
    check: str
    level: Literal["ok", "warning", "critical", "unknown"]
    text: str


class NodeStatus(Strict, frozen=True):
    version: str | None
    ready: bool | None
    free_disk_bytes: int | None
    connections: int | None
    streams: int
    consumers: list[StatusConsumer]
    checks: list[StatusCheck]
    notes: list[str]


STATUS_SCHEMAS: dict[str, Any] = {"status": NodeStatus}
