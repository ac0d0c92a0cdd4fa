"""SetCutter: cuts the stored bytes of a block into messages that end at the end of an item. It parses no item.

    Block = (0x0A length item)*

The same bytes are the content of `BlockItemSet` and of `Block`, so nothing is written anew. A stored part can end
within an item. A message has the items that a part completes, about a mebibyte. A larger item is a message of its own:
its bytes pass through as they come. Messages are views of the parts, so no bytes are copied.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import BLOCK_ITEM_TAG
from block_node.blocks.protobuf import read_varint

SET_BYTES: Final = 1024 * 1024
PREFIX_BYTES_MAX: Final = 11


class SetPart(NamedTuple):
    """Bytes of a set of items. begins_bytes: the size of the whole set, if these bytes begin it; else None."""

    begins_bytes: int | None
    pieces: list[memoryview]


class SetCutter:
    """Cuts the bytes of one block into sets of items.

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
