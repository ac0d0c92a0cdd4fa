"""What `--json` promises of the command `top`, as `schemas` for the others."""

from __future__ import annotations

from typing import Any

from tests.cli.promised.schemas import Strict


class TopRates(Strict, frozen=True):
    seconds: float | None
    messages_per_s: float | None
    commits_per_s: float | None
    reads_per_s: float | None
    commit_ms: float | None


class TopStream(Strict, frozen=True):
    stream: str
    partitions: int
    messages: int
    bytes: int
    messages_per_s: float | None
    lag: int | None
    newest_us: int | None


class TopConsumer(Strict, frozen=True):
    client: str
    stream: str
    partitions: int
    members: int
    lag: int
    messages_per_s: float | None
    saved_us: int
    is_beyond_end: bool


class TopBlocks(Strict, frozen=True):
    chain: str
    first: int | None
    last: int | None
    missing: int
    next_expected: int | None


class TopView(Strict, frozen=True):
    node: str
    now_us: int | None
    version: str | None
    schema_version: int | None
    uptime_s: float | None
    connections: int | None
    waiting: int | None
    failed: int | None
    refused: int | None
    memory_bytes: int | None
    free_disk_bytes: int | None
    refusing_pushes: bool | None
    write_failure: str | None
    rates: TopRates
    streams: list[TopStream]
    consumers: list[TopConsumer]
    blocks: TopBlocks | None
    notes: list[str]


TOP_SCHEMAS: dict[str, Any] = {"top": TopView}
