"""What backfill counts, and what can be asked about it. The metrics and the command line read only this."""

from __future__ import annotations

import enum

import msgspec

from block_node.backfill.health_machine import SourceStatistics
from block_node.backfill.plan import Gap


class State(enum.IntEnum):
    """The values of the gauge `backfill_status`. ERROR: the last run could not fill everything. OFF: no sources."""

    IDLE = 0
    RUNNING = 1
    ERROR = 2
    OFF = 3


class Counters(msgspec.Struct):
    """Since the start of the node; they outlive a crash of the worker."""

    gaps_detected: int = 0
    blocks_fetched: int = 0
    blocks_stored: int = 0
    fetch_errors: int = 0
    persistence_failures: int = 0
    fetched_bytes: int = 0
    given_up: int = 0
    scans: int = 0
    runs: int = 0


class BackfillStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """queue: blocks that are being looked after. missing: of those that the last scan missed, what is not here yet.

    gaps: where those are, the first of them. held_bytes: fetched and not stored. eta_s: until the queue is empty, as
    the run goes; None where that is not known. newest_known: the highest block that a publisher is known to have.
    """

    state: State
    queue: int
    missing: int
    gaps: list[Gap]
    held_bytes: int
    under_way: int
    eta_s: float | None
    newest_known: int | None
    counters: Counters
    sources: list[SourceStatistics]
