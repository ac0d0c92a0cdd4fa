"""The start block, the events and the statistics of a `ChainOrder`, which finds the heaviest chain."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from cardinal_streams.payload import CompleteBatch


class Start(msgspec.Struct, frozen=True):
    """A block at which a chain begins or continues, usually the last block that the application has finished."""

    hash: bytes
    number: int
    weight: int


class ChainUpdate(msgspec.Struct, frozen=True):
    """A change of the chain: the application first undoes the blocks in `removed`, then applies those in `added`.

    Both lists are in ascending order of block numbers, and their first blocks have the same parent. A chain that began
    without a start block can fork before its first block; then `removed` has all blocks of the chain."""

    removed: tuple[CompleteBatch, ...]
    added: tuple[CompleteBatch, ...]


class Revert(msgspec.Struct, frozen=True):
    """The chain goes back to the block `hash`, because a Reorg message demands it or a reorg was given up.

    `weight`: the weight of that block, or 0 if it is not known.
    `removed`: the removed blocks that are still in memory, in ascending order. Older ones can be missing, so the
    application must be able to return to `hash` by itself.
    `removed_weight`: the weight of the heaviest removed block."""

    hash: bytes
    number: int
    weight: int
    removed: tuple[CompleteBatch, ...]
    removed_weight: int = 0


class NeedsReorg(msgspec.Struct, frozen=True):
    """A block is heavier than the head of the chain, but its fork begins before the final block.

    The final block is the newest block that a reorg of at most `reorg_threshold` blocks must not remove. Only a Reorg
    message can remove it, so the heavier block is kept until such a message comes."""

    hash: bytes
    number: int
    weight: int


class DropReason(enum.Enum):
    """The reason why a block was dropped.

    OLD: it forks off before the final block (see `NeedsReorg`) and is no heavier than the head, or belongs to a reorg
        that was given up.
    BANNED: the application wants another block with this number, or the block descends from a banned block.
    NUMBER: its number is not higher than its parent's number.
    MEMORY: the limits for blocks in memory were exceeded. It must be given to the `ChainOrder` again when the chain has
        grown. A `ChainConsumer` reads it again, and reports it only if nothing but a Reorg message leads to it."""

    OLD = "old"
    BANNED = "banned"
    NUMBER = "number"
    MEMORY = "memory"


class Dropped(msgspec.Struct, frozen=True):
    """A block was dropped. `offsets`: where its messages are. Blocks dropped for the reason OLD are only counted."""

    hash: bytes
    number: int
    weight: int
    reason: DropReason
    offsets: dict[str, int] = {}


ChainEvent: TypeAlias = ChainUpdate | Revert | NeedsReorg | Dropped


class ChainStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a `ChainOrder` since its start; `head_…` and the last three fields are the present state."""

    head_number: int | None  # None before the first block, as the weight
    head_weight: int | None
    updates: int
    updates_with_removals: int
    added: int
    removed: int
    reorg_depth_max: int  # the most blocks that one update removed
    reverts: int
    duplicates: int
    dropped: dict[DropReason, int]
    chain_length: int
    waiting: int  # kept but not on the chain
    waiting_bytes: int
