"""Cuts the bytes of a stored block into messages' worth of items, as they are read. Pure; it judges no item.

    Block = (0x0A length item)*

Items go together up to a size; a larger one goes in pieces, so that nobody has to hold it. `blocks.item_cutter` gives
items one by one, at five times the cost; here they stay together, since a subscriber that catches up takes hundreds of
thousands a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from block_node.blocks.items import BLOCK_ITEM_TAG
from block_node.protocol import Piece

HEAD_BYTES_MIN = 32
"""The first piece of an item has its tag and length, which take 15 bytes at most."""
ITEM_OVERHEAD_BYTES = 4
"""What an item costs in a chunk beside its bytes, as its length on the wire does."""


class NotABlock(ValueError):
    """The bytes are not items with their lengths."""


class Chunk(NamedTuple):
    """Whole items, or one piece of one; size_bytes is theirs."""

    items: list[bytes]
    piece: Piece
    size_bytes: int


def split_items(items: Sequence[bytes], chunk_bytes: int) -> list[Chunk]:
    """The same items in chunks of at most `chunk_bytes`."""
    chunks: list[Chunk] = []
    gathered: list[bytes] = []
    cost = 0
    for item in items:
        if gathered and cost + len(item) + ITEM_OVERHEAD_BYTES > chunk_bytes:
            chunks.append(Chunk(gathered, Piece.WHOLE, sum(map(len, gathered))))
            gathered, cost = [], 0
        if len(item) > chunk_bytes:
            chunks += split_piece(item, Piece.WHOLE, chunk_bytes)
        else:
            gathered.append(item)
            cost += len(item) + ITEM_OVERHEAD_BYTES
    if gathered:
        chunks.append(Chunk(gathered, Piece.WHOLE, sum(map(len, gathered))))
    return chunks


def split_piece(data: bytes, piece: Piece, chunk_bytes: int) -> list[Chunk]:
    """An item, or a piece of one, in pieces of at most `chunk_bytes`; whole where it fits."""
    parts = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)] or [b""]
    begins, ends = piece in (Piece.WHOLE, Piece.FIRST), piece in (Piece.WHOLE, Piece.LAST)
    chunks = []
    for place, part in enumerate(parts):
        first, last = begins and place == 0, ends and place == len(parts) - 1
        kind = Piece.WHOLE if first and last else Piece.FIRST if first else Piece.LAST if last else Piece.MIDDLE
        chunks.append(Chunk([part], kind, len(part)))
    return chunks


class ItemSplitter:
    """One block's bytes in, chunks of at most `chunk_bytes` out.

    Invariant: `_waiting` is less than an item with its length, or empty while an item goes in pieces (`_missing_bytes`
    of it are still to come).
    """

    def __init__(self, chunk_bytes: int) -> None:
        assert chunk_bytes >= HEAD_BYTES_MIN, "a first piece must hold the beginning of an item"
        self._chunk_bytes = chunk_bytes
        self._waiting = b""
        self._items: list[bytes] = []
        self._cost = 0
        self._missing_bytes = 0

    def feed(self, data: bytes) -> list[Chunk]:
        """What is complete with these bytes. Raises NotABlock."""
        chunks: list[Chunk] = []
        data = self._waiting + data
        at = self._feed_pieces(data, 0, chunks)
        end = len(data)
        while at < end and not self._missing_bytes:
            if end - at > 1 and data[at] == BLOCK_ITEM_TAG and data[at + 1] < 0x80:
                size_bytes, start = data[at + 1], at + 2
            else:
                begins = self._read_length(data, at)
                if begins is None:
                    break
                size_bytes, start = begins
            if size_bytes > self._chunk_bytes:
                if end - start < min(HEAD_BYTES_MIN, size_bytes):
                    break
                self._flush(chunks)
                at = self._feed_first(data, start, size_bytes, chunks)
                continue
            if end - start < size_bytes:
                break
            cost = size_bytes + ITEM_OVERHEAD_BYTES
            if self._cost + cost > self._chunk_bytes:
                self._flush(chunks)
            at = start + size_bytes
            self._items.append(data[start:at])
            self._cost += cost
        self._waiting = data[at:]
        return chunks

    def finish(self) -> list[Chunk]:
        """The rest, at the end of the block. Raises NotABlock where an item is cut short."""
        if self._waiting or self._missing_bytes:
            raise NotABlock("the block ends inside an item")
        chunks: list[Chunk] = []
        self._flush(chunks)
        return chunks

    def _read_length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Size of the item there, and where it starts; None where that has not come yet."""
        if data[at] != BLOCK_ITEM_TAG:
            raise NotABlock(f"an item begins with {data[at]:#04x}")
        size_bytes = shift = 0
        for place in range(at + 1, min(at + 11, len(data))):
            byte = data[place]
            size_bytes |= (byte & 0x7F) << shift
            if byte < 0x80:
                return size_bytes, place + 1
            shift += 7
        if len(data) - at > 10:
            raise NotABlock("a length does not end")
        return None

    def _feed_first(self, data: bytes, start: int, size_bytes: int, chunks: list[Chunk]) -> int:
        piece = data[start : start + self._chunk_bytes]
        chunks.append(Chunk([piece], Piece.FIRST, len(piece)))
        self._missing_bytes = size_bytes - len(piece)
        return self._feed_pieces(data, start + len(piece), chunks)

    def _feed_pieces(self, data: bytes, at: int, chunks: list[Chunk]) -> int:
        while self._missing_bytes and at < len(data):
            piece = data[at : at + min(self._chunk_bytes, self._missing_bytes)]
            at += len(piece)
            self._missing_bytes -= len(piece)
            chunks.append(Chunk([piece], Piece.MIDDLE if self._missing_bytes else Piece.LAST, len(piece)))
        return at

    def _flush(self, chunks: list[Chunk]) -> None:
        if self._items:
            chunks.append(Chunk(self._items, Piece.WHOLE, self._cost - ITEM_OVERHEAD_BYTES * len(self._items)))
            self._items, self._cost = [], 0
