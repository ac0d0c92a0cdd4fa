"""The events of a subscription, and the whole blocks that they make up."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from block_node.protocol import Piece


class ItemsArrived(msgspec.Struct, frozen=True, gc=False):
    """Items of a block, from its header on, or one piece of one. verified: False in the early mode."""

    block_number: int
    items: list[bytes]
    piece: Piece
    verified: bool


class BlockArrived(msgspec.Struct, frozen=True):
    """All items of the block have come, and it is verified."""

    block_number: int
    root: bytes


class BlockWithdrawn(msgspec.Struct, frozen=True):
    """The items that came of this block count no more: it begins anew, at another node or since it was not verified."""

    block_number: int


SubscriptionEvent: TypeAlias = ItemsArrived | BlockArrived | BlockWithdrawn


class ReceivedBlock(msgspec.Struct, frozen=True):
    """A verified block, whole."""

    number: int
    root: bytes
    items: list[bytes]
