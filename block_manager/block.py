"""The block of the block manager: an id, the id of its parent, a number and data. The block manager never interprets
the data."""

from __future__ import annotations

from typing import Final

import msgspec

NULL_BLOCK_ID: Final = "0" * 16
"""The id that a first block has as `previous_id`. `contains` returns True for this id, but no block has it, so it
cannot be held, walked or fetched."""


class Block(msgspec.Struct, frozen=True):
    """Block: one block of a fork tree.

    block_id: the name of the block. Two different blocks with the same id are a conflict.
    previous_id: the id of its parent; NULL_BLOCK_ID for a first block.
    number: larger than the number of its parent, not necessarily by 1.
    data: the body of the block, any bytes.
    """

    block_id: str
    previous_id: str
    number: int
    data: bytes = b""
