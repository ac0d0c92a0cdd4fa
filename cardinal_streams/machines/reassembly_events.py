"""What a `Reassembler` says: events, and counts."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.machines.missing import Missing
from cardinal_streams.message.types import Reorg, ReorgComplete
from cardinal_streams.payload import CompleteBatch


class Outcome(enum.IntEnum):
    """What became of a message. The last three are refusals, which only a faulty producer can cause."""

    TAKEN = 0
    DUPLICATE = 1
    LATE = 2
    UNTRACKED = 3
    OLD = 4
    UNANNOUNCED = 5
    OVER_COUNT = 6
    NO_SUCH_ITEM = 7


# Outcomes from here on are refusals.
FIRST_REFUSAL = Outcome.UNANNOUNCED
# For what is done for each message: to look a member up in its enumeration costs a sixth of reading a message.
TAKEN, DUPLICATE, OLD, UNANNOUNCED = Outcome.TAKEN, Outcome.DUPLICATE, Outcome.OLD, Outcome.UNANNOUNCED


class Completed(msgspec.Struct, frozen=True):
    """A block is complete."""

    batch: CompleteBatch


class Refused(msgspec.Struct, frozen=True):
    """A message that does not fit its block's Batch was dropped; `what` names its key or item."""

    hash: bytes
    outcome: Outcome
    what: str


class Outdated(msgspec.Struct, frozen=True):
    """A block below the floor was given up, whether or not it was complete."""

    hash: bytes


class EvictionReason(enum.Enum):
    """MEMORY: the limits, and it was touched least recently. IDLE: nothing of it came for long. CLOSED: its channel
    ended."""

    MEMORY = "memory"
    IDLE = "idle"
    CLOSED = "closed"


class Evicted(msgspec.Struct, frozen=True):
    """An incomplete block was given up, and what it was missing."""

    hash: bytes
    reason: EvictionReason
    missing: Missing


ReassemblyEvent: TypeAlias = Completed | Refused | Evicted | Outdated | Reorg | ReorgComplete


class ReassemblyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start, `old` and `evicted` of blocks, the others of messages or as named; `incomplete` and
    `incomplete_bytes` are what is held now."""

    messages: int
    completed: int
    duplicates: int
    late: int
    untracked: int
    refused: int
    pings: int
    old: int
    evicted: dict[EvictionReason, int]
    incomplete: int
    incomplete_bytes: int
