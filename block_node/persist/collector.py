"""Collects the items of one block, as they arrive, into the bytes that will be stored: `(0x0A length item)*`. The bytes
are cut into parts at once, which the caller can remove before the block is complete, so that a large block does not
fill the memory. This module stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from block_node.blocks.block_reader import HEAD_BYTES_MIN
from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import item_prefix, item_size
from block_node.persist.chain_log import NewBlock
from block_node.persist.mark import PART_BYTES_MAX, cut

PREFIXES_MAX: Final = 0x4000
"""The number of item sizes whose prefix is cached. Most items are smaller than 16 KiB."""


prefix_of = lru_cache(maxsize=PREFIXES_MAX)(item_prefix)


class BlockCollector:
    """The collected bytes of one block.

    - attempt: the number under which parts are staged (written to disk before the verification). staged: how many were.
    - broken: whether the pieces of an item did not fit the length at its start. The block is then damaged.

    Invariant: all parts except the last have PART_BYTES_MAX bytes. When `add` returns, `_tail` has fewer.
    """

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.item_count = 0
        self.staged = 0
        self._parts: list[bytes] = []
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._head = bytearray()
        self._piece_bytes_left: int | None = None
        self.broken = False

    @property
    def held_bytes(self) -> int:
        return len(self._parts) * PART_BYTES_MAX + self._tail_bytes

    def add(self, items: Sequence[bytes]) -> None:
        tail, size_bytes = self._tail, self._tail_bytes
        for item in items:
            prefix = prefix_of(len(item))
            tail += (prefix, item)
            size_bytes += len(prefix) + len(item)
        self.item_count += len(items)
        self._tail_bytes = size_bytes
        self._cut_tail()

    def add_piece(self, piece: bytes, *, last: bool) -> None:
        """Adds the next piece of an item, whose first bytes show the size of the whole item."""
        if self._piece_bytes_left is None:
            self._head += piece
            if len(self._head) < HEAD_BYTES_MIN and not last:
                return
            piece = bytes(self._head)
            self._head.clear()
            size_bytes = _item_bytes(piece)
            self.broken |= size_bytes is None
            prefix = prefix_of(size_bytes or len(piece))
            self._piece_bytes_left = size_bytes or 0
            self._tail.append(prefix)
            self._tail_bytes += len(prefix)
            self.item_count += 1
        self._piece_bytes_left -= len(piece)
        self._tail.append(piece)
        self._tail_bytes += len(piece)
        if last:
            self.broken |= self._piece_bytes_left != 0
            self._piece_bytes_left = None
        self._cut_tail()

    def _cut_tail(self) -> None:
        if self._tail_bytes >= PART_BYTES_MAX:
            tail = self._tail
            parts = cut(b"".join(tail))
            rest = parts.pop() if len(parts[-1]) < PART_BYTES_MAX else b""
            self._parts += parts
            self._tail, self._tail_bytes = [rest] if rest else [], len(rest)

    def take_parts(self) -> tuple[int, list[bytes]]:
        """Removes the complete parts, to be staged. Returns the number of the first, and the parts."""
        first, parts = self.staged, self._parts
        self._parts = []
        self.staged += len(parts)
        return first, parts

    def finish(
        self,
        number: int,
        root: bytes,
        verifier_state: bytes = b"",
        other_roots: tuple[bytes, ...] = (),
        corrected_root: bytes = b"",
    ) -> NewBlock:
        parts = self._parts
        if self._tail_bytes or not (self.staged or parts):
            parts = [*parts, b"".join(self._tail)]
        return NewBlock(
            number=number,
            root=root,
            items=self.item_count,
            parts=parts,
            attempt=self.attempt if self.staged else None,
            staged=self.staged,
            staged_bytes=self.staged * PART_BYTES_MAX,
            verifier_state=verifier_state,
            other_roots=other_roots,
            corrected_root=corrected_root,
        )


def _item_bytes(head: bytes) -> int | None:
    try:
        return item_size(head)
    except BlockFormatError:
        return None
