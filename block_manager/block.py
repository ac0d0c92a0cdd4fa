"""What the block manager keeps: a block, as far as it must know it. It does not read what a block says."""

from __future__ import annotations

from typing import Final

import msgspec

NULL_BLOCK_ID: Final = "0" * 16
"""The parent of a first block. It is known always, and is no block: it cannot be held, walked or got."""


class Block(msgspec.Struct, frozen=True):
    """One block of a fork tree.

    block_id: what names it everywhere; two blocks with one id are a conflict.
    previous_id: of its parent; NULL_BLOCK_ID for a first block.
    number: larger than its parent's, not necessarily by 1.
    data: its body, opaque.
    """

    block_id: str
    previous_id: str
    number: int
    data: bytes = b""
