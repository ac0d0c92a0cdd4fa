"""The events of a subscription, and the type of a whole block, which is assembled from events."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from block_node.protocol import Piece


class ItemsArrived(msgspec.Struct, frozen=True, gc=False):
    """Items of a block have arrived, or one piece of a large item. verified: False only in the early mode."""

    block_number: int
    items: list[bytes]
    piece: Piece
    verified: bool


class BlockArrived(msgspec.Struct, frozen=True):
    """All items of the block have arrived, and the block is verified."""

    block_number: int
    root: bytes


class BlockWithdrawn(msgspec.Struct, frozen=True):
    """The program must discard the received items of the block. The block was invalid or not completed, or the
    subscription failed in the middle of it. The block can arrive again, from its beginning."""

    block_number: int


SubscriptionEvent: TypeAlias = ItemsArrived | BlockArrived | BlockWithdrawn


class ReceivedBlock(msgspec.Struct, frozen=True):
    """A whole, verified block, with its serialized items in order."""

    number: int
    root: bytes
    items: list[bytes]
