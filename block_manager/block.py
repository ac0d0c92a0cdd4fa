"""A block as the block manager sees it: its id, its parent, its number and its data. The data is never read."""

from __future__ import annotations

from typing import Final

import msgspec

NULL_BLOCK_ID: Final = "0" * 16
"""The parent of a first block. `contains` knows this id, but no block has it: it cannot be held, walked or fetched."""


class Block(msgspec.Struct, frozen=True):
    """Block: one block of a fork tree.

    block_id: the name of the block. Two different blocks with one id are a conflict.
    previous_id: the id of its parent; NULL_BLOCK_ID for a first block.
    number: larger than the number of its parent, not necessarily by 1.
    data: the body of the block, any bytes.
    """

    block_id: str
    previous_id: str
    number: int
    data: bytes = b""
