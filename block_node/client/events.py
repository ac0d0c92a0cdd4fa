"""The events of a subscription, and the type of the whole blocks assembled from them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from block_node.protocol import Piece


class ItemsArrived(msgspec.Struct, frozen=True, gc=False):
    """Event: items of a block have arrived, or one piece of a large item. verified: False in the early mode."""

    block_number: int
    items: list[bytes]
    piece: Piece
    verified: bool


class BlockArrived(msgspec.Struct, frozen=True):
    """Event: all items of this block have arrived, and the block is verified."""

    block_number: int
    root: bytes


class BlockWithdrawn(msgspec.Struct, frozen=True):
    """Event: discard the items received of this block. The block begins again, since the node changed or it was
    invalid.
    """

    block_number: int


SubscriptionEvent: TypeAlias = ItemsArrived | BlockArrived | BlockWithdrawn


class ReceivedBlock(msgspec.Struct, frozen=True):
    """A whole, verified block."""

    number: int
    root: bytes
    items: list[bytes]
