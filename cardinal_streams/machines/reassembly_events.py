"""The events and the figures of a `Reassembler`."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.machines.missing import Missing
from cardinal_streams.message.types import Reorg, ReorgComplete
from cardinal_streams.payload import CompleteBatch


class Outcome(enum.IntEnum):
    """The outcome of one message. The last three outcomes are refusals, which only a faulty producer can cause."""

    TAKEN = 0
    DUPLICATE = 1
    LATE = 2
    UNTRACKED = 3
    OLD = 4
    UNANNOUNCED = 5
    OVER_COUNT = 6
    NO_SUCH_ITEM = 7


# This outcome and all later ones are refusals.
FIRST_REFUSAL = Outcome.UNANNOUNCED
# These names serve the code that runs for each message: looking a member up in its enumeration takes a sixth of the
# time of reading a message.
TAKEN, DUPLICATE, OLD, UNANNOUNCED = Outcome.TAKEN, Outcome.DUPLICATE, Outcome.OLD, Outcome.UNANNOUNCED


class Completed(msgspec.Struct, frozen=True):
    """A block is complete."""

    batch: CompleteBatch


class Refused(msgspec.Struct, frozen=True):
    """A message that contradicts its block's Batch was dropped. `what` names its key or item."""

    hash: bytes
    outcome: Outcome
    what: str


class Outdated(msgspec.Struct, frozen=True):
    """A block below the floor was given up. The block may have been complete."""

    hash: bytes


class EvictionReason(enum.Enum):
    """Why an incomplete block was evicted.

    MEMORY: the limits were reached, and this block was touched least recently. IDLE: no message of it arrived for long.
    CLOSED: its channel ended."""

    MEMORY = "memory"
    IDLE = "idle"
    CLOSED = "closed"


class Evicted(msgspec.Struct, frozen=True):
    """An incomplete block was evicted. `missing` names the messages that it lacked."""

    hash: bytes
    reason: EvictionReason
    missing: Missing


ReassemblyEvent: TypeAlias = Completed | Refused | Evicted | Outdated | Reorg | ReorgComplete


class ReassemblyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a reassembler since its start. `completed`, `old` and `evicted` count blocks; the other counters
    count messages. `incomplete` is the number of incomplete blocks at this moment, and `incomplete_bytes` their
    memory.
    """

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
