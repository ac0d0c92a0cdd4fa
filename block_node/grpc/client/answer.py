"""SubscribeAnswer: takes the answer to `subscribeBlockStream`, and gathers the items of the block that is coming."""

from __future__ import annotations

from typing import Final

from block_node.events import ITEM_OVERHEAD_BYTES
from block_node.grpc.limits import ASK_BYTES_MAX
from block_node.grpc.messages import SUBSCRIBED_SET, MessageFormatError, find_set, read_message

ITEMS_STEP: Final = 10_000
"""How many items are taken before they are counted. A message of 125 MB can have 60 million."""


class SubscribeAnswer:
    """The base of the classes that receive the blocks of a subscription. A subclass decides what to do with a block,
    and when it is too large: `_grew` gets the number of its bytes as they arrive, also within a message.

    Invariant: `_items` has the items of the present block. `_counted_bytes` bytes of the incomplete message were
    reported to `_grew`.
    """

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._counted_bytes = 0

    def take(self, message: bytes) -> None:
        counted_bytes, self._counted_bytes = self._counted_bytes, 0
        try:
            found = find_set(message, SUBSCRIBED_SET)
            if found is not None:
                self._grew(max(0, len(message) - counted_bytes))
                while found.left_bytes and self._wants_more:
                    self._add(found.take(ITEMS_STEP, len(message))[0])
                return
            # Any other message is read in one step, so it must be small.
            if len(message) > ASK_BYTES_MAX:
                raise MessageFormatError(f"{len(message)} bytes with something beside a set of items")
            part = read_message("SubscribeStreamResponse", message)
        except MessageFormatError as error:
            self._take_damaged(str(error))
            return
        if "block_items" in part:
            self._grew(len(message))
            self._add(part["block_items"].get("block_items", []))
        elif "end_of_block" in part:
            self._end_block(part["end_of_block"].get("block_number", 0))
        elif "status" in part:
            self._take_status(part["status"])

    def note_arriving(self, size_bytes: int) -> None:
        """Notes how many bytes of an incomplete message have arrived."""
        more_bytes, self._counted_bytes = size_bytes - self._counted_bytes, size_bytes
        self._grew(more_bytes)

    def room(self) -> None:
        # The call has one request, which is sent at once, so nothing waits for room.
        pass

    def _add(self, items: list[bytes]) -> None:
        self._items += items
        self._grew(ITEM_OVERHEAD_BYTES * len(items))

    @property
    def _wants_more(self) -> bool:
        raise NotImplementedError

    def _grew(self, size_bytes: int) -> None:
        """Counts more bytes of the present block, including the memory that its items take beside their bytes."""
        raise NotImplementedError

    def _end_block(self, number: int) -> None:
        raise NotImplementedError

    def _take_status(self, code: int) -> None:
        raise NotImplementedError

    def _take_damaged(self, reason: str) -> None:
        raise NotImplementedError
