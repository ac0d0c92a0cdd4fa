"""What a `ChainOrder` is told to start from, and what it says: events, and counts."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.payload import CompleteBatch


class Start(msgspec.Struct, frozen=True):
    """The last block that the application has finished."""

    hash: bytes
    number: int
    weight: int


class ChainUpdate(msgspec.Struct, frozen=True):
    """The chain changes: first `removed` is undone, then `added` is done, both in ascending order.

    The first of each has the same parent, except where a chain without a start block forks off below the first block
    that was added: then all that was added is removed.
    """

    removed: tuple[CompleteBatch, ...]
    added: tuple[CompleteBatch, ...]


class Revert(msgspec.Struct, frozen=True):
    """The chain ends at this block now, on the word of a Reorg message.

    `weight` is 0 if it is not known. `removed` are the blocks above it, ascending, as far as they are still held: the
    application has to be able to return to `hash` by itself. `removed_weight` is that of the heaviest of them.
    """

    hash: bytes
    number: int
    weight: int
    removed: tuple[CompleteBatch, ...]
    removed_weight: int = 0


class NeedsReorg(msgspec.Struct, frozen=True):
    """A block is heavier than the chain and forks below the final block: only a Reorg message can lead there. It
    waits."""

    hash: bytes
    number: int
    weight: int


class DropReason(enum.Enum):
    """OLD: it forks below the final block, and is no heavier than the chain. BANNED: not the block that the
    application wants at this number, or after such a block. NUMBER: not above its parent's number. MEMORY: the limits
    of what may wait."""

    OLD = "old"
    BANNED = "banned"
    NUMBER = "number"
    MEMORY = "memory"


class Dropped(msgspec.Struct, frozen=True):
    """A block was given up. Those that are merely old are counted, and not told."""

    hash: bytes
    number: int
    weight: int
    reason: DropReason


ChainEvent: TypeAlias = ChainUpdate | Revert | NeedsReorg | Dropped


class ChainStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start, then what is held now. `head_…` are None before the first block."""

    head_number: int | None
    head_weight: int | None
    updates: int
    updates_with_removals: int
    added: int
    removed: int
    reorg_depth_max: int
    reverts: int
    duplicates: int
    dropped: dict[DropReason, int]
    chain_length: int
    waiting: int
    waiting_bytes: int
