"""SetCutter: cuts the stored bytes of a block into messages that end at the end of an item. It parses no item.

    Block = (0x0A length item)*

The same bytes are the content of `BlockItemSet` and of `Block`, so nothing is written anew. Stored parts are cut
anywhere. A message has the items that a part completes, about a mebibyte; a larger item is one message of its own,
whose bytes pass through as they come.
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
    data: bytes


class SetCutter:
    """The bytes of one block. Invariant: `_waiting` has the beginning of one item. `_large_bytes` is the rest of the
    item that is passing through; while it is not 0, `_waiting` is empty."""

    def __init__(self) -> None:
        self._waiting = b""
        self._large_bytes = 0

    def feed(self, data: bytes) -> list[SetPart]:
        """Adds a part. Raises BlockFormatError."""
        found: list[SetPart] = []
        if self._large_bytes:
            passing = data[: self._large_bytes]
            found.append(SetPart(None, passing))
            self._large_bytes -= len(passing)
            data = data[len(passing) :]
        if self._waiting:
            data = self._waiting + data
        start = at = 0
        end = len(data)
        while at < end:
            # The prefix of the last item may be cut itself.
            if data[at] != BLOCK_ITEM_TAG:
                raise BlockFormatError("a block has only items", at)
            if end - at < PREFIX_BYTES_MAX and all(byte >= 0x80 for byte in data[at + 1 : end]):
                break
            size_bytes = data[at + 1]
            after = at + 2
            if size_bytes >= 0x80:
                size_bytes, after = read_varint(data, at + 1)
            after += size_bytes
            if after - start > SET_BYTES and at > start:
                found.append(SetPart(at - start, data[start:at]))
                start = at
            if after > end:
                if after - at <= SET_BYTES:
                    break
                # The item is large: it goes out as it comes.
                found.append(SetPart(after - at, data[at:]))
                self._large_bytes = after - end
                self._waiting = b""
                return found
            at = after
        if at > start:
            found.append(SetPart(at - start, data[start:at]))
        self._waiting = data[at:]
        return found

    def finish(self) -> None:
        """Raises BlockFormatError if the block ends inside an item."""
        if self._waiting or self._large_bytes:
            raise BlockFormatError("a block ends inside an item")
