from __future__ import annotations

import enum

import msgspec

from block_node.backfill.health_machine import SourceStatistics
from block_node.backfill.plan import BlockGap


class BackfillStatus(enum.IntEnum):
    """The state of backfill, as the gauge `backfill_status` shows it. ERROR: the last run could not fetch all missing
    blocks, or nobody knows which are missing. OFF: no source node is configured."""

    IDLE = 0
    RUNNING = 1
    ERROR = 2
    OFF = 3


class Counters(msgspec.Struct):
    """The counters of backfill since the node started. They survive a crash of the worker.

    fetch_errors: failed requests, and fetched blocks that failed verification.
    given_up: ranges of blocks that were left to the next search. last_given_up: a text about the last of them. Empty
    after a run that gave up nothing.
    runs: the number of times that fetching started.
    """

    gaps_detected: int = 0
    blocks_fetched: int = 0
    blocks_stored: int = 0
    fetch_errors: int = 0
    persistence_failures: int = 0
    fetched_bytes: int = 0
    given_up: int = 0
    last_given_up: str = ""
    scans: int = 0
    runs: int = 0


class BackfillStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The values that describe backfill at one moment.

    queue: the number of missing blocks that are being fetched or processed.
    missing: the number of blocks that the last search found and that are still missing. Other blocks can be missing too
    while no source node answers. None if no block was found missing, and nobody knows which blocks exist.
    problem: why blocks are missing, or why it is unknown whether blocks are missing. Otherwise empty.
    held_bytes: the total size of blocks that were fetched and are not stored yet.
    eta_s: the estimated time until `queue` is 0. newest_known: the highest block that publishers have announced.
    """

    state: BackfillStatus
    queue: int
    missing: int | None
    problem: str
    gaps: list[BlockGap]
    held_bytes: int
    under_way: int
    eta_s: float | None
    newest_known: int | None
    counters: Counters
    sources: list[SourceStatistics]
