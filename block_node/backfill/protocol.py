"""The messages of `node/block_backfill/1` and `/2`: a client asks for the state of backfill, and can start a search."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

import bare
from block_node.backfill.health_machine import SourceStatistics
from ockam.protocol import Protocol

REASON_CHARACTERS_MAX = 300


# type BackfillAsk struct { request_id: uint  run: bool }
class BackfillAsk(msgspec.Struct, frozen=True):
    """A request for the state of backfill. run: whether to search for missing blocks now, also in gaps in a pause."""

    request_id: bare.UInt
    run: bool


# type BackfillGap struct { live_tail: bool  first_block: u64  last_block: u64 }
class BackfillGap(msgspec.Struct, frozen=True):
    live_tail: bool
    first_block: bare.U64
    last_block: bare.U64


# type BackfillSource struct { name: str  priority: uint  failures: uint  backoff_ms: uint  first_block: optional<u64>
#   last_block: optional<u64>  ranges: uint  latency_us: optional<uint>  blocks: uint  size_bytes: uint  errors: uint
#   last_error: str }
class BackfillSource(msgspec.Struct, frozen=True):
    """The statistics of one source node, see `SourceStatistics`."""

    name: str
    priority: bare.UInt
    failures: bare.UInt
    backoff_ms: bare.UInt
    first_block: bare.U64 | None
    last_block: bare.U64 | None
    ranges: bare.UInt
    latency_us: bare.UInt | None
    blocks: bare.UInt
    size_bytes: bare.UInt
    errors: bare.UInt
    last_error: str


# type BackfillAnswer struct { request_id: uint  state: uint  queue: uint  missing: uint  gaps: list<BackfillGap>
#   held_bytes: uint  under_way: uint  eta_ms: optional<uint>  newest_known: optional<u64>  scans: uint  runs: uint
#   gaps_detected: uint  blocks_fetched: uint  blocks_stored: uint  fetched_bytes: uint  fetch_errors: uint
#   persistence_failures: uint  given_up: uint  sources: list<BackfillSource> }
class BackfillAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of version 1, with the fields of `BackfillStatistics` and `Counters`. gaps: the first 1000.

    state: a `BackfillStatus`."""

    request_id: bare.UInt
    state: bare.UInt
    queue: bare.UInt
    missing: bare.UInt
    gaps: list[BackfillGap]
    held_bytes: bare.UInt
    under_way: bare.UInt
    eta_ms: bare.UInt | None
    newest_known: bare.U64 | None
    scans: bare.UInt
    runs: bare.UInt
    gaps_detected: bare.UInt
    blocks_fetched: bare.UInt
    blocks_stored: bare.UInt
    fetched_bytes: bare.UInt
    fetch_errors: bare.UInt
    persistence_failures: bare.UInt
    given_up: bare.UInt
    sources: list[BackfillSource]


# type BackfillReport struct { answer: the fields of BackfillAnswer  is_unknown: bool  problem: str
#   disagreements: list<str> }
class BackfillReport(BackfillAnswer, frozen=True, kw_only=True):
    """The answer of version 2. is_unknown: whether nobody knows which blocks exist. problem: why blocks are missing, or
    why that is unknown. disagreements: a text for each source node with another chain."""

    is_unknown: bool
    problem: str
    disagreements: list[str]

    @property
    def known_missing(self) -> int | None:
        """How many blocks are known to be missing. None instead of 0 if it is unknown which blocks exist."""
        return None if self.is_unknown and not self.missing else self.missing


BACKFILL_1 = Protocol("node/block_backfill/1", BackfillAsk, BackfillAnswer)
BACKFILL = Protocol("node/block_backfill/2", BackfillAsk, BackfillReport)


def source_answers(sources: Iterable[SourceStatistics]) -> list[BackfillSource]:
    return [
        msgspec.convert(
            msgspec.structs.asdict(each)
            | {
                "backoff_ms": int(each.backoff_s * 1_000),
                "latency_us": None if each.latency_ms is None else int(each.latency_ms * 1_000),
                "last_error": each.last_error[:REASON_CHARACTERS_MAX],
            },
            BackfillSource,
        )
        for each in sources
    ]
