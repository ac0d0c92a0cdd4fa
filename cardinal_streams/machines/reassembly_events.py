"""The events and the statistics of a `Reassembler`, which rebuilds blocks from their messages."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.machines.missing import Missing
from cardinal_streams.message.types import Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.payload import CompleteBatch


class Outcome(enum.IntEnum):
    """The outcome of one message of a block. The last three are refusals, which only a faulty producer causes.

    TAKEN: the message was used.
    DUPLICATE, LATE: the message had arrived before, or its block was already finished.
    UNTRACKED, OLD: the consumer does not want the message, or the block is too old.
    UNANNOUNCED: the block's Batch message (the list of its contents) does not announce the message.
    OVER_COUNT, NO_SUCH_ITEM: more messages of a prefix arrived than it announces, or the sub batch has fewer items."""

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
    """All messages of a block have arrived. `batch` is the block."""

    batch: CompleteBatch


class Refused(msgspec.Struct, frozen=True):
    """A message was dropped because it contradicts the Batch message of its block, which lists the block's contents.

    `what`: the key, the sub batch id or the item of the dropped message."""

    hash: bytes
    outcome: Outcome
    what: str


class Outdated(msgspec.Struct, frozen=True):
    """A block was given up: its number and weight are too low to join the chain (see `Reassembler.set_floor`)."""

    hash: bytes


class EvictionReason(enum.Enum):
    """The reason why a `Reassembler` evicted an incomplete block.

    MEMORY: a memory limit was exceeded. The block is read again, and there is no event, unless it alone exceeds the
        limit: then it can become complete only with a higher limit.
    IDLE: more than `idle_messages_max` messages have arrived since the block's last message. If another one comes, the
        block is read again.
    CLOSED: the reorg channel of the block ended."""

    MEMORY = "memory"
    IDLE = "idle"
    CLOSED = "closed"


class Evicted(msgspec.Struct, frozen=True):
    """An incomplete block was given up. `missing` tells which messages were missing."""

    hash: bytes
    reason: EvictionReason
    missing: Missing


ReassemblyEvent: TypeAlias = Completed | Refused | Evicted | Outdated | Reorg | ReorgComplete | ReorgAbandoned


class ReassemblyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a `Reassembler`.

    `completed`, `old` and `evicted` count blocks since the start; `messages`, `duplicates`, `late`, `untracked`,
    `refused` and `pings` count messages since the start. `incomplete` and `incomplete_bytes` are the present number of
    incomplete blocks and their memory."""

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
