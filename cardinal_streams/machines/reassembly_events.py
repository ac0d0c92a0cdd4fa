"""The events and the statistics of a `Reassembler`, which rebuilds blocks from their messages; what a block lacks."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.message.types import Reorg, ReorgAbandoned, ReorgComplete
from cardinal_streams.payload import CompleteBatch

MISSING_ITEMS_SHOWN = 16


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


class MissingState(enum.Enum):
    UNKNOWN = "unknown"
    BATCH = "batch"
    PARTS = "parts"
    NOTHING = "nothing"


class Missing(msgspec.Struct, frozen=True):
    """The messages that one block lacks."""

    # UNKNOWN: no message of the block has arrived, or it was forgotten. BATCH: its Batch message has not arrived, but
    # others have. PARTS: other messages are missing. NOTHING: it was complete, or was given up as too old.
    state: MissingState
    early_messages: int = 0
    number: int | None = None  # None before the Batch message arrives
    messages: int = 0  # a header counts once, as its items are unknown; 0 before the Batch message arrives
    prefixes: dict[str, int] = {}  # by prefix, the number of missing messages
    headers: tuple[bytes, ...] = ()  # the ids of sub batches without a header
    items: dict[bytes, tuple[int, ...]] = {}  # by sub batch id, the first missing indexes

    def __str__(self) -> str:
        match self.state:
            case MissingState.UNKNOWN:
                return "nothing of this block has arrived"
            case MissingState.BATCH:
                return f"its Batch has not arrived, {self.early_messages} other messages have"
            case MissingState.NOTHING:
                return "nothing is missing"
        parts = [f"{count} messages of prefix {prefix!r}" for prefix, count in self.prefixes.items()]
        parts += [f"the header of sub batch {id_.hex()}" for id_ in self.headers]
        parts += [f"items {', '.join(map(str, found))} of sub batch {id_.hex()}" for id_, found in self.items.items()]
        return "; ".join(parts)


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
