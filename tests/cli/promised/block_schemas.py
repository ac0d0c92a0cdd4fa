"""What `--json` of the commands of `block` promises: these fields, of these types, and no other."""

from __future__ import annotations

from tests.cli.promised.schemas import Strict


class BlocksPublished(Strict, frozen=True):
    published: int
    first_block: int
    last_block: int
    acknowledged: int
    compared: int
    seconds: float
    passed_over: list[str]


class BlockRow(Strict, frozen=True):
    """Of block subscribe, one a line, and of block get."""

    block: int
    items: int
    bytes: int
    root: str
    file: str | None


class BlockStatus(Strict, frozen=True):
    first_available: int | None
    last_available: int | None
    next_expected: int | None
    available: list[tuple[int, int]]
    stored: list[tuple[int, int]]
    version: str | None
    plugins: dict[str, str]
    address_book: list[int] | None


class ChainGenerated(Strict, frozen=True):
    folder: str
    blocks: int
    first_block: int
    last_block: int
    items: int
    bytes: int
    address_book: str


class BackfillGap(Strict, frozen=True):
    live_tail: bool
    first_block: int
    last_block: int


class BackfillStatus(Strict, frozen=True):
    state: str
    queue: int
    missing: int | None
    problem: str | None
    disagreements: list[str]
    gaps: list[BackfillGap]
    held_bytes: int
    under_way: int
    eta_s: float | None
    newest_known: int | None
    scans: int
    runs: int
    gaps_detected: int
    blocks_fetched: int
    blocks_stored: int
    fetched_bytes: int
    fetch_errors: int
    persistence_failures: int
    given_up: int


class BackfillRun(BackfillStatus, frozen=True):
    stored_now: int


class BackfillSource(Strict, frozen=True):
    source: str
    priority: int
    first_block: int | None
    last_block: int | None
    ranges: int
    blocks: int
    bytes: int
    latency_s: float | None
    failures: int
    errors: int
    backoff_s: float
    last_error: str | None


class BackfillSources(Strict, frozen=True):
    sources: list[BackfillSource]
    disagreements: list[str]


BLOCK_SCHEMAS: dict[str, type[Strict]] = {
    "block publish": BlocksPublished,
    "block subscribe": BlockRow,
    "block get": BlockRow,
    "block status": BlockStatus,
    "block generate": ChainGenerated,
    "block backfill status": BackfillStatus,
    "block backfill run": BackfillRun,
    "block backfill sources": BackfillSources,
}
