"""Splits the bytes of a block, while they are read, into messages that end at the end of an item. Verifies nothing.

    Block = (0x0A length item)*

`ItemSplitter` makes batches of items. A large item is split into pieces, so that no reader needs the whole item in
memory. Subscribers that catch up receive hundreds of thousands of items per second this way. `SetCutter` makes sets of
items in the same form as the block, for gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import BLOCK_ITEM_TAG
from block_node.blocks.protobuf import read_varint
from block_node.protocol import Piece

HEAD_BYTES_MIN = 32
"""The first piece of an item always has room for the tag and length of the item, which take at most 15 bytes."""
LENGTH_BYTES_MAX = 10
ITEM_OVERHEAD_BYTES = 4
"""The bytes that a message needs for the length of each item."""


class ItemBatch(NamedTuple):
    """The items for one message: whole items, or one piece of a large item."""

    items: list[bytes]
    piece: Piece
    size_bytes: int


def split_items(items: Sequence[bytes], batch_bytes: int) -> list[ItemBatch]:
    """Splits whole items into batches of at most `batch_bytes` bytes. A larger item is split into pieces."""
    batches: list[ItemBatch] = []
    gathered: list[bytes] = []
    cost = 0
    for item in items:
        if gathered and cost + len(item) + ITEM_OVERHEAD_BYTES > batch_bytes:
            batches.append(ItemBatch(gathered, Piece.WHOLE, sum(map(len, gathered))))
            gathered, cost = [], 0
        if len(item) > batch_bytes:
            batches += split_piece(item, Piece.WHOLE, batch_bytes)
        else:
            gathered.append(item)
            cost += len(item) + ITEM_OVERHEAD_BYTES
    if gathered:
        batches.append(ItemBatch(gathered, Piece.WHOLE, sum(map(len, gathered))))
    return batches


def split_piece(data: bytes, piece: Piece, batch_bytes: int) -> list[ItemBatch]:
    parts = [data[at : at + batch_bytes] for at in range(0, len(data), batch_bytes)] or [b""]
    begins, ends = piece in (Piece.WHOLE, Piece.FIRST), piece in (Piece.WHOLE, Piece.LAST)
    batches = []
    for place, part in enumerate(parts):
        first, last = begins and place == 0, ends and place == len(parts) - 1
        kind = Piece.WHOLE if first and last else Piece.FIRST if first else Piece.LAST if last else Piece.MIDDLE
        batches.append(ItemBatch([part], kind, len(part)))
    return batches


class ItemJoiner:
    """Joins the pieces of items. items: the whole items that were added since the last `take`."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self._pieces: list[bytes] = []

    @property
    def is_in_item(self) -> bool:
        return bool(self._pieces)

    def add(self, items: list[bytes], piece: Piece) -> None:
        if piece is Piece.WHOLE:
            self.items += items
            return
        self._pieces += items
        if piece is Piece.LAST:
            self.items.append(b"".join(self._pieces))
            self._pieces = []

    def take(self) -> list[bytes]:
        """Returns the whole items, and forgets them and the pieces of an incomplete item."""
        items, self.items, self._pieces = self.items, [], []
        return items


class ItemSplitter:
    """Splits the bytes of one block, which arrive in chunks, into batches of items.

    offset: the position of `_waiting` in the block.
    item_bytes_max: the largest item of a block from a file, where empty items are errors, too. None: a stored block,
    whose items were verified.

    Invariant: `_waiting` has the beginning of one incomplete item, or nothing. While a large item is returned in
    pieces, `_waiting` is empty, and `_missing_bytes` is the number of bytes of this item that have not arrived.
    """

    def __init__(self, batch_bytes: int, item_bytes_max: int | None = None) -> None:
        assert batch_bytes >= HEAD_BYTES_MIN, "a first piece must hold the beginning of an item"
        self._batch_bytes = batch_bytes
        self._item_bytes_max = item_bytes_max
        self._waiting = b""
        self._items: list[bytes] = []
        self._cost = 0
        self._missing_bytes = 0
        self.offset = 0

    def feed(self, data: bytes) -> list[ItemBatch]:
        """Adds bytes, and returns the batches that are now complete. Raises BlockFormatError."""
        batches: list[ItemBatch] = []
        data = self._waiting + data
        # The rest of a large item comes first.
        at = self._feed_pieces(data, 0, batches)
        end = len(data)
        while at < end and not self._missing_bytes:
            # Nearly all items have a length of one byte, which needs no loop.
            if end - at > 1 and data[at] == BLOCK_ITEM_TAG and 0 < data[at + 1] < 0x80:
                size_bytes, start = data[at + 1], at + 2
            else:
                begins = self._read_length(data, at)
                if begins is None:
                    break
                size_bytes, start = begins
            # A large item is returned in pieces; the first has the tag and length of its content.
            if size_bytes > self._batch_bytes:
                if end - start < min(HEAD_BYTES_MIN, size_bytes):
                    break
                self._flush(batches)
                piece = data[start : start + self._batch_bytes]
                batches.append(ItemBatch([piece], Piece.FIRST, len(piece)))
                self._missing_bytes = size_bytes - len(piece)
                at = self._feed_pieces(data, start + len(piece), batches)
                continue
            if end - start < size_bytes:
                break
            # A batch that is full goes out before the next item.
            cost = size_bytes + ITEM_OVERHEAD_BYTES
            if self._cost + cost > self._batch_bytes:
                self._flush(batches)
            at = start + size_bytes
            self._items.append(data[start:at])
            self._cost += cost
        self._waiting = data[at:]
        self.offset += at
        return batches

    def finish(self) -> list[ItemBatch]:
        """Ends the block, and returns the last batch, if any. Raises BlockFormatError."""
        if self._waiting or self._missing_bytes:
            begun = self._read_length(self._waiting, 0) if self._waiting else None
            missing_bytes = self._missing_bytes if begun is None else sum(begun) - len(self._waiting)
            missing = f", {missing_bytes} bytes are missing" if missing_bytes else ""
            raise BlockFormatError(f"it ends within an item{missing}", self.offset + len(self._waiting))
        batches: list[ItemBatch] = []
        self._flush(batches)
        return batches

    def _read_length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Returns the size and the position of the content of an item; None if its length is incomplete."""
        offset, bytes_max = self.offset + at, self._item_bytes_max
        if data[at] != BLOCK_ITEM_TAG:
            raise BlockFormatError("a block has only items", offset)
        head = data[at + 1 : at + 1 + LENGTH_BYTES_MAX]
        if len(head) < LENGTH_BYTES_MAX and all(byte >= 0x80 for byte in head):
            return None
        try:
            size_bytes, used = read_varint(head, 0)
        except BlockFormatError as error:
            raise BlockFormatError(error.what, offset + 1) from error
        if bytes_max is not None and not size_bytes:
            raise BlockFormatError("an item is empty", offset)
        if bytes_max is not None and size_bytes > bytes_max:
            raise BlockFormatError(f"an item has {size_bytes} bytes, {bytes_max} are allowed", offset)
        return size_bytes, at + 1 + used

    def _feed_pieces(self, data: bytes, at: int, batches: list[ItemBatch]) -> int:
        while self._missing_bytes and at < len(data):
            piece = data[at : at + min(self._batch_bytes, self._missing_bytes)]
            at += len(piece)
            self._missing_bytes -= len(piece)
            batches.append(ItemBatch([piece], Piece.MIDDLE if self._missing_bytes else Piece.LAST, len(piece)))
        return at

    def _flush(self, batches: list[ItemBatch]) -> None:
        if self._items:
            batches.append(ItemBatch(self._items, Piece.WHOLE, self._cost - ITEM_OVERHEAD_BYTES * len(self._items)))
            self._items, self._cost = [], 0


SET_BYTES: Final = 1024 * 1024
PREFIX_BYTES_MAX: Final = 11


class SetPart(NamedTuple):
    """Bytes of a set of items. begins_bytes: the size of the whole set, if these bytes begin it; else None."""

    begins_bytes: int | None
    pieces: list[memoryview]


class SetCutter:
    """Cuts the stored bytes of one block, which are the content of `BlockItemSet` and of `Block`, into sets of items.

    A stored part can end within an item. A set has the items that a part completes, about a mebibyte. A larger item is
    a set of its own: its bytes pass through as they come. Sets are views of the parts, so no bytes are copied.

    Invariant: `_waiting` has the `_waiting_bytes` bytes with which an item begins, and `_missing_bytes` is the rest of
    that item; 0 if its prefix is incomplete. `_large_bytes` is the rest of the item that is passing through; while it
    is not 0, nothing waits."""

    def __init__(self) -> None:
        self._waiting: list[memoryview] = []
        self._waiting_bytes = self._missing_bytes = 0
        self._large_bytes = 0

    @property
    def is_in_item(self) -> bool:
        """Whether a part of a large item has gone out, and the rest must follow."""
        return self._large_bytes > 0

    def feed(self, data: bytes) -> list[SetPart]:
        """Adds a part of the block. Returns the bytes that can go out now. Raises BlockFormatError."""
        found: list[SetPart] = []
        if self._waiting and not self._missing_bytes:
            # An incomplete prefix has only a few bytes, which are joined with the new ones.
            data = b"".join((*self._waiting, data))
            self._waiting, self._waiting_bytes = [], 0
        view, end = memoryview(data), len(data)
        start = min(self._large_bytes, end)
        if start:
            found.append(SetPart(None, [view[:start]]))
            self._large_bytes -= start
        # The next set begins with the waiting item, whose rest is at the front of this part.
        at = start + self._missing_bytes
        if at > end:
            self._wait(view[start:], at - end)
            return found
        before, before_bytes = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes, self._missing_bytes = [], 0, 0
        missing_bytes = 0
        full_at, whole_until = start - before_bytes + SET_BYTES, end - PREFIX_BYTES_MAX
        while at < end:
            if data[at] != BLOCK_ITEM_TAG:
                raise BlockFormatError("a block has only items", at)
            # The prefix of the last item may be incomplete.
            if at > whole_until and all(byte >= 0x80 for byte in data[at + 1 : end]):
                break
            size_bytes = data[at + 1]
            after = at + 2
            if size_bytes >= 0x80:
                size_bytes, after = read_varint(data, at + 1)
            after += size_bytes
            if after > full_at and before_bytes + at > start:
                found.append(SetPart(before_bytes + at - start, [*before, view[start:at]]))
                start, before, before_bytes = at, [], 0
                full_at = start + SET_BYTES
            if after > end:
                missing_bytes = after - end
                break
            at = after
        if before_bytes + at > start:
            found.append(SetPart(before_bytes + at - start, [*before, view[start:at]]))
        if missing_bytes and end + missing_bytes - at > SET_BYTES:
            # The item is large: it goes out as it comes.
            found.append(SetPart(end + missing_bytes - at, [view[at:]]))
            self._large_bytes = missing_bytes
        elif at < end:
            self._wait(view[at:], missing_bytes)
        return found

    def finish(self) -> None:
        """Raises BlockFormatError if the block ends inside an item."""
        if self._waiting or self._large_bytes:
            raise BlockFormatError("a block ends inside an item")

    def _wait(self, data: memoryview, missing_bytes: int) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._missing_bytes = missing_bytes
