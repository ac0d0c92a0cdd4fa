"""The events and the statistics of a `Reassembler`, which rebuilds blocks from their messages."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.machines.missing import Missing
from cardinal_streams.message.types import Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.payload import CompleteBatch


class Receipt(enum.IntEnum):
    """The outcome of one message of a block. The last three are refusals, which only a faulty producer causes."""

    TAKEN = 0  # it was used
    DUPLICATE = 1  # it had arrived before
    LATE = 2  # its block was already finished
    UNTRACKED = 3  # the consumer does not want it
    OLD = 4  # its block is too old
    UNANNOUNCED = 5  # the Batch message of its block does not announce it
    OVER_COUNT = 6  # more messages of a prefix arrived than the Batch message announces
    NO_SUCH_ITEM = 7  # the sub batch has fewer items


# This outcome and all later ones are refusals.
FIRST_REFUSAL = Receipt.UNANNOUNCED
# These names serve the code that runs for each message: looking a member up in its enumeration takes a sixth of the
# time of reading a message.
TAKEN, DUPLICATE, OLD, UNANNOUNCED = Receipt.TAKEN, Receipt.DUPLICATE, Receipt.OLD, Receipt.UNANNOUNCED


class Completed(msgspec.Struct, frozen=True):
    """All messages of a block have arrived. `batch` is the block."""

    batch: CompleteBatch


class Refused(msgspec.Struct, frozen=True):
    """A message was dropped because it contradicts the Batch message of its block, which lists the block's contents.
    `what`: the key, the sub batch id or the item of the dropped message."""

    hash: bytes
    outcome: Receipt
    what: str


class Outdated(msgspec.Struct, frozen=True):
    """A block was given up: its number and weight are too low to join the chain (see `Reassembler.set_floor`)."""

    hash: bytes


class EvictionReason(enum.Enum):
    """The reason why a `Reassembler` evicted an incomplete block."""

    MEMORY = "memory"  # a limit was exceeded; the block is read again, unless it alone exceeds the limit
    IDLE = "idle"  # `idle_messages_max` messages came since its last message; it is read again if another comes
    CLOSED = "closed"  # the reorg channel of the block ended


class Evicted(msgspec.Struct, frozen=True):
    """An incomplete block was given up. `missing` tells which messages were missing."""

    hash: bytes
    reason: EvictionReason
    missing: Missing


ReassemblyEvent: TypeAlias = Completed | Refused | Evicted | Outdated | Reorg | ReorgComplete | ReorgAbandoned


class ReassemblyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a `Reassembler`: messages and blocks since the start, but `incomplete` and `incomplete_bytes`
    are the present blocks and their memory. `completed`, `old` and `evicted` count blocks, the others messages."""

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
