"""The statistics of backfill. The metrics and the command line read only these."""

from __future__ import annotations

import enum

import msgspec

from block_node.backfill.health_machine import SourceStatistics
from block_node.backfill.plan import Gap


class State(enum.IntEnum):
    """The state of backfill: the values of the gauge `backfill_status`. ERROR: the last run could not fill everything.
    OFF: no sources are configured."""

    IDLE = 0
    RUNNING = 1
    ERROR = 2
    OFF = 3


class Counters(msgspec.Struct):
    """Counters of backfill since the start of the node. They outlive a crash of the worker."""

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
    """A snapshot of backfill.

    queue: the number of blocks that the fillers are fetching. missing: the number of blocks that the last scan found
    missing and that are still missing. gaps: the first gaps of these missing blocks. held_bytes: the size of blocks
    that were fetched and are not stored. under_way: the number of requests. eta_s: the estimated seconds until the
    queue is empty; None if not known. newest_known: the highest block that a publisher is known to have.
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
