"""The block type of the block manager: an id, the id of the parent, a number and data.

The block manager never interprets the data.
"""

from __future__ import annotations

from typing import Final

import msgspec

NULL_BLOCK_ID: Final = "0" * 16
"""The null id: the `previous_id` of a block without a parent.

`BlockManager.contains` returns True for the null id. A block must not have this id.
"""


class Block(msgspec.Struct, frozen=True):
    """Block: one block of a tree of blocks with forks.

    block_id: the unique name of the block. The manager rejects a second, different block with the same id.
    previous_id: the id of the parent. NULL_BLOCK_ID means that the block has no parent.
    number: a number larger than the number of the parent. Numbers need not be consecutive.
    data: the content of the block, as any bytes.
    """

    block_id: str
    previous_id: str
    number: int
    data: bytes = b""
