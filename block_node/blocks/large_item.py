"""Hashes one item that arrives in pieces of any size. No piece is kept in memory."""

from __future__ import annotations

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.hash_scheme import HashRules
from block_node.blocks.items import ItemKind
from block_node.blocks.protobuf import BYTES, read_varint
from block_node.blocks.record_proof import RecordFileReader

HEAD_BYTES_MIN = 20
"""The number of bytes at the start of an item that always contain its whole tag and length."""


class LargeItem:
    """The hash of one item whose bytes arrive in pieces, the first one with the whole tag and length."""

    def __init__(self, head: bytes | memoryview, rules: HashRules, *, read_record: bool) -> None:
        tag, offset = read_varint(head, 0)
        if tag & 7 != BYTES or not tag >> 3:
            raise BlockFormatError(f"a block item does not start with tag {tag}")
        content_size, offset = read_varint(head, offset)
        self.kind = tag >> 3
        self.size = offset + content_size
        self._left = content_size
        self._hash = rules.new(rules.leaf)
        self._hash.update(head[:offset])
        self._record = RecordFileReader() if read_record and self.kind == ItemKind.RECORD_FILE else None
        self.feed(memoryview(head)[offset:])

    def feed(self, piece: bytes | memoryview) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise BlockFormatError(f"an item has one field, {-self._left} bytes follow it", self.size)
        self._hash.update(piece)
        if self._record is not None:
            self._record.feed(piece)

    def leaf(self) -> bytes:
        if self._left:
            raise BlockFormatError(f"an item of {self.size} bytes lacks {self._left}", self.size - self._left)
        return self._hash.digest()

    def record_digest(self) -> bytes | None:
        """Returns the digest that record-file proofs sign, if it was computed. Raises BlockFormatError."""
        return self._record.digest() if self._record is not None else None
