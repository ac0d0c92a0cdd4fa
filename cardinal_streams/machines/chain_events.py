"""The start block, the events and the figures of a `ChainOrder`."""

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
    """One change of the chain: the application first undoes `removed`, then applies `added`. Both lists ascend by
    number.

    The first blocks of both lists have the same parent, with one exception: a chain that began without a start block
    may fork off below its first block. Then `removed` has every block that was ever added.
    """

    removed: tuple[CompleteBatch, ...]
    added: tuple[CompleteBatch, ...]


class Revert(msgspec.Struct, frozen=True):
    """A Reorg message said that the chain ends at this block.

    `weight`: the block's weight, 0 if it is not known. `removed`: the blocks above it that are still held, ascending.
    Older blocks may be missing in `removed`, so the application must be able to return to `hash` by itself.
    `removed_weight`: the weight of the heaviest removed block.
    """

    hash: bytes
    number: int
    weight: int
    removed: tuple[CompleteBatch, ...]
    removed_weight: int = 0


class NeedsReorg(msgspec.Struct, frozen=True):
    """A block is heavier than the chain, but forks off below the final block. The block waits, since only a Reorg
    message can make it part of the chain."""

    hash: bytes
    number: int
    weight: int


class DropReason(enum.Enum):
    """Why a block was dropped.

    OLD: the block forks off below the final block and is no heavier than the chain. BANNED: the application wants
    another block at this number, or the block descends from such a block. NUMBER: the block's number is not above its
    parent's. MEMORY: more blocks waited than the limits allow."""

    OLD = "old"
    BANNED = "banned"
    NUMBER = "number"
    MEMORY = "memory"


class Dropped(msgspec.Struct, frozen=True):
    """A block was dropped. Blocks that are dropped as OLD are only counted; no event is made for them."""

    hash: bytes
    number: int
    weight: int
    reason: DropReason


ChainEvent: TypeAlias = ChainUpdate | Revert | NeedsReorg | Dropped


class ChainStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The figures since the start, then the figures of this moment. The `head_…` fields are None before the first
    block."""

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
