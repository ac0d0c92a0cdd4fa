"""Splits a serialized `Block` into items while its bytes arrive. A large item is returned in pieces. It does no I/O.

Block = (0x0A length item)*
"""

from __future__ import annotations

import msgspec

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import BLOCK_ITEM_TAG
from block_node.blocks.protobuf import BYTES, read_varint

PREFIX_BYTES_MAX = 11
"""A tag of one byte and a length of up to ten bytes."""


class ItemPiece(msgspec.Struct, frozen=True):
    """Consecutive bytes of an item. `first` and `last` are both True for a complete item."""

    data: bytes
    first: bool = True
    last: bool = True


class ItemCutter:
    """Splits the bytes of a block, which arrive in chunks of any size, into items, and large items into pieces.

    Invariant: between calls `_buffer` has less than one piece or one item prefix. `_left` is the number of bytes of the
    current item that were not returned yet, including its bytes in `_buffer`.
    """

    def __init__(self, *, piece_bytes_max: int, item_bytes_max: int) -> None:
        self._piece_bytes_max = piece_bytes_max
        self._item_bytes_max = item_bytes_max
        self._buffer = bytearray()
        self._left = 0
        self._first = False
        self._inside = False
        self._offset = 0

    def feed(self, chunk: bytes) -> list[ItemPiece]:
        """Adds a chunk and returns the pieces that are now complete. Raises BlockFormatError."""
        self._buffer += chunk
        pieces: list[ItemPiece] = []
        start = 0
        while True:
            if not self._inside:
                begun = self._begin(start)
                if begun is None:
                    break
                start = begun
            wanted = min(self._left, self._piece_bytes_max)
            if len(self._buffer) - start < wanted:
                break
            self._left -= wanted
            self._inside = self._left > 0
            with memoryview(self._buffer) as view:
                data = bytes(view[start : start + wanted])
            pieces.append(ItemPiece(data, self._first, not self._inside))
            self._first = False
            start += wanted
        del self._buffer[:start]
        self._offset += start
        return pieces

    def finish(self) -> None:
        if self._inside or self._buffer:
            missing = f", {self._left - len(self._buffer)} bytes are missing" if self._inside else ""
            raise BlockFormatError(f"it ends within an item{missing}", self._offset + len(self._buffer))
        if not self._offset:
            raise BlockFormatError("it is empty")

    def _begin(self, start: int) -> int | None:
        """Reads the prefix of an item. Returns the position after it, or None if it has not arrived completely."""
        head = bytes(self._buffer[start : start + PREFIX_BYTES_MAX])
        if not head:
            return None
        if head[0] != BLOCK_ITEM_TAG:
            raise BlockFormatError("a block has only items", self._offset + start)
        if len(head) < PREFIX_BYTES_MAX and all(byte >= 0x80 for byte in head[1:]):
            return None
        self._left, used = read_varint(head, 1)
        if not self._left:
            raise BlockFormatError("an item is empty", self._offset + start)
        if self._left > self._item_bytes_max:
            reason = f"an item has {self._left} bytes, {self._item_bytes_max} are allowed"
            raise BlockFormatError(reason, self._offset + start)
        self._inside = self._first = True
        return start + used


def item_size(head: bytes) -> int:
    """Returns the total size of an item, from at least its first 20 bytes. Raises BlockFormatError."""
    tag, offset = read_varint(head, 0)
    if tag & 7 != BYTES:
        raise BlockFormatError(f"a block item does not start with tag {tag}")
    content_size, offset = read_varint(head, offset)
    return offset + content_size
