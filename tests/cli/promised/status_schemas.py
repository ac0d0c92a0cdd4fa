"""What `--json` promises of the command `status`, as `schemas` for the others."""

from __future__ import annotations

from typing import Any, Literal

from tests.cli.promised.schemas import Strict


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


class Party(Strict, frozen=True):
    party: str
    connections: int
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    received_bytes_s: int
    sent_bytes_s: int


class OpenConnection(Strict, frozen=True):
    peer: str
    identity: str
    framing: str
    age_s: int
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    received_bytes_s: int
    sent_bytes_s: int
    backlog_bytes: int


class Connections(Strict, frozen=True):
    total: int
    parties: list[Party]
    connections: list[OpenConnection]


class ConnectionsClosed(Strict, frozen=True):
    who: str
    closed: int


STATUS_SCHEMAS: dict[str, Any] = {"status": NodeStatus, "connections": Connections | ConnectionsClosed}
