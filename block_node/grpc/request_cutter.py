"""RequestCutter: cuts a large request of a publisher into smaller ones while it arrives. It parses no item.

A `PublishStreamRequest` with a set of items means the same as several with parts of the set. Cut so, a message of a
hundred megabytes is never held whole, and its items are stored while it still comes.
"""

from __future__ import annotations

from typing import Final

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.protobuf import read_varint, varint
from block_node.grpc.set_cutter import SET_BYTES, SetCutter

SET_TAG: Final = 0x0A
NOT_ITEMS: Final = b"\x0a\x01\x00"
"""A request that stands for the rest of one that is damaged: its set has something else than an item."""


class RequestCutter:
    """The large requests of one call, one after the other (`MessageCutter`).

    Invariant: `_held` has the bytes that were not cut yet. `_large` has the beginning of an item that is longer than a
    usual set, and of which `_large_bytes` bytes are missing.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._sets: SetCutter | None = None
        self._large: list[bytes] = []
        self._large_bytes = 0
        self.gathered_bytes = 0

    def feed(self, data: bytes, missing_bytes: int) -> list[bytes]:
        """Adds the next bytes of a request, of which `missing_bytes` follow. Returns requests that are complete."""
        self._held.append(data)
        self._held_bytes += len(data)
        # Bytes are gathered, because an item that is not complete is copied each time. A request that is no set is
        # gathered whole.
        if missing_bytes and self._held_bytes < max(SET_BYTES, 0 if self._sets else self.gathered_bytes):
            return []
        data = b"".join(self._held)
        if self._sets is None:
            start = _find_items(data, len(data) + missing_bytes)
            if start is None and missing_bytes:
                self.gathered_bytes = len(data) + missing_bytes
                return []
            if start is not None:
                self._sets = SetCutter()
                data = data[start:]
        found = [data] if self._sets is None else self._cut(self._sets, data, is_last=not missing_bytes)
        self._held.clear()
        self._held_bytes = 0
        if not missing_bytes:
            self._begin()
        return found

    def _cut(self, sets: SetCutter, data: bytes, *, is_last: bool) -> list[bytes]:
        found: list[bytes] = []
        try:
            for begins_bytes, part in sets.feed(data):
                if begins_bytes is not None:
                    self.gathered_bytes = self._large_bytes = begins_bytes
                self._large.append(part)
                self._large_bytes -= len(part)
                if not self._large_bytes:
                    found.append(b"".join((b"\x0a", varint(self.gathered_bytes), *self._large)))
                    self._large.clear()
                    self.gathered_bytes = 0
            if is_last:
                sets.finish()
        except BlockFormatError:
            found.append(NOT_ITEMS)
        return found


def _find_items(data: bytes, size_bytes: int) -> int | None:
    """Returns where the items of a request of `size_bytes` bytes begin, or None if it has anything else than a set."""
    if not data or data[0] != SET_TAG:
        return None
    try:
        set_bytes, start = read_varint(data, 1)
    except BlockFormatError:
        return None
    return start if start + set_bytes == size_bytes else None
