"""Decides which block a publisher sends next, and interprets the node's answers. Pure: no sockets, no clock, no items.

A block is kept until it is known to be durable. A node acknowledges numbers. Unless it confirms that this session sent
the block, it can have a different block with this number, and the two must be compared by their root hashes. Sources:
specs/block_publish.md, facts/block_node.md §2.7.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    DurableBlock,
    PublishResponse,
    ResendBlock,
    RootAcknowledgement,
    SessionOpened,
    SkipBlock,
    StreamEnded,
)


class PublisherMachine:
    """The blocks of one publisher over all its sessions, by their numbers.

    - acknowledged: the highest number up to which all added blocks are known to be durable. None if there is none.
    - to_compare: the blocks that must be compared, with the root hash that the node reported, or empty bytes.
    - needed: the block that the node needs next, if the publisher does not have it, so that this session is useless.
    - ended: the node's last message in this session.

    `_lost`: a block that the node has acknowledged and cannot show. `_offered`: all such blocks that were sent again.

    Invariant: `_numbers` has the blocks that the present node does not have, in order, all above `_watermark`, the last
    acknowledged number. Until an added block is settled, it is in `_numbers`, or in `to_compare`, whose blocks are not
    above `_watermark`.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._cursor = 0
        self._resend: int | None = None
        self._opened = False
        self._watermark: int | None = None
        self._offered: set[int] = set()
        self._lost: int | None = None
        self._settled: list[int] = []
        self._waiting: list[int] = []
        self.acknowledged: int | None = None
        self.to_compare: dict[int, bytes] = {}
        self.sending: int | None = None
        self.needed: int | None = None
        self.ended: StreamEnded | None = None

    @property
    def next_to_compare(self) -> int | None:
        """The block to compare next. None while a block is sent again because the node could not show it."""
        return min(self.to_compare, default=None) if self._lost is None else None

    @property
    def kept(self) -> list[int]:
        return self._numbers

    def add(self, number: int) -> bool:
        """Adds a block to publish. Returns False if a block with this number is already kept."""
        if number in self.to_compare or number == self._lost or self._has(number):
            return False
        # The node may have another block of this number.
        if self._is_acknowledged(number):
            self.to_compare[number] = b""
        else:
            insort(self._numbers, number)
        return True

    def session_begins(self) -> None:
        self.sending = self._resend = self._watermark = None
        # Blocks that the earlier node had may be missing here, so they are sent again.
        for number in self.to_compare:
            insort(self._numbers, number)
        if self._lost is not None:
            insort(self._numbers, self._lost)
        self._lost = None
        self._offered.clear()
        self.to_compare.clear()
        self._opened = False
        self.needed = None
        self.ended = None

    def next_block(self) -> int | None:
        if self._lost is not None and self._lost not in self._offered:
            return self._lost
        at = bisect_left(self._numbers, self._cursor)
        return self._numbers[at] if at < len(self._numbers) else None

    def begin(self, number: int) -> None:
        self.sending = number
        if number == self._lost:
            self._offered.add(number)

    def finish(self, number: int) -> None:
        self._stop(self._cursor if number == self._lost else number + 1)

    def take(self, response: PublishResponse) -> None:
        """Applies a message of the node. If `sending` is None afterwards, the session must stop sending its block."""
        if isinstance(response, RootAcknowledgement):
            self._acknowledge(response.block_number, response.blocks)
        elif isinstance(response, Acknowledgement):
            self._acknowledge(response.block_number)
        elif isinstance(response, SessionOpened):
            if self._opened:
                return
            self._opened = True
            self._acknowledge(response.last_block)
            # Sending begins with the node's next block, or with the lowest kept block if that is higher.
            lowest = self._numbers[0] if self._numbers else response.next_block
            self._cursor = response.next_block if response.next_block > lowest else lowest
        elif isinstance(response, SkipBlock):
            if response.block_number == self.sending:
                self._stop(response.block_number + 1)
        elif isinstance(response, DuplicateBlock):
            self._acknowledge(response.last_block)
            if response.block_number == self._lost:
                # The node has stored the block again, or does not want it. The next comparison shows which.
                self.to_compare[self._lost], self._lost = b"", None
                if self.sending == response.block_number:
                    self._stop(self._cursor)
            elif self.sending == response.block_number:
                self._stop(response.last_block + 1)
        # The node lacks earlier blocks. If they are not kept, another node may be nearer.
        elif isinstance(response, Behind):
            self._acknowledge(response.last_block)
            self._stop(response.next_block)
            self.needed = None if self._has(response.next_block) else response.next_block
        elif isinstance(response, ResendBlock):
            # The block is sent again after the block that is being sent.
            number = response.block_number
            if self._has(number) and number != self.sending:
                if self.sending is None:
                    self._cursor = number
                else:
                    self._resend = number if self._resend is None else min(self._resend, number)
        else:
            self._acknowledge(response.last_block)
            self.sending = None
            self.ended = response

    def offer_again(self, number: int) -> bool:
        """Sends a block again that the node has acknowledged but cannot show. Returns False if it was sent again
        before."""
        if number in self._offered:
            return False
        if self._lost is None:
            del self.to_compare[number]
            self._lost = number
        return True

    def compared(self, number: int) -> None:
        del self.to_compare[number]
        self._settle(number)

    def take_settled(self) -> list[int]:
        """Returns the blocks that became known to be durable since the last call. They are no longer kept."""
        settled, self._settled = self._settled, []
        return settled

    def _stop(self, cursor: int) -> None:
        self.sending = None
        self._cursor, self._resend = (cursor, None) if self._resend is None else (self._resend, None)

    def _acknowledge(self, number: int | None, blocks: Sequence[DurableBlock] = ()) -> None:
        """Notes that the node has all blocks up to `number`. Those not listed as this session's own are compared."""
        if number is None or self._is_acknowledged(number):
            return
        self._watermark = number
        # 1. The acknowledged blocks leave the list of blocks to send.
        end = bisect_left(self._numbers, number + 1)
        covered, self._numbers = self._numbers[:end], self._numbers[end:]
        # 2. A block that the node lists as this session's own is settled. All others are to be compared, and are noted
        # first: `acknowledged` must not rise above them.
        named = {block.block_number: block for block in blocks}
        for each in covered:
            block = named.get(each)
            if block is None or not block.own:
                self.to_compare[each] = b"" if block is None else block.root
        for each in covered:
            if each not in self.to_compare:
                self._settle(each)
        # 3. Nothing below the watermark is sent any more, also not the rest of a block that is being sent.
        self._cursor = max(self._cursor, number + 1)
        if self._resend is not None and self._resend <= number:
            self._resend = None
        if self.sending is not None and self.sending <= number and self.sending != self._lost:
            self._stop(number + 1)

    def _settle(self, number: int) -> None:
        self._settled.append(number)
        # `acknowledged` rises to a number only if no lower block must still be compared.
        insort(self._waiting, number)
        unsettled = self.to_compare if self._lost is None else [*self.to_compare, self._lost]
        lowest = min(unsettled, default=self._waiting[-1] + 1)
        end = bisect_left(self._waiting, lowest)
        if end:
            highest = self._waiting[end - 1]
            self.acknowledged = highest if self.acknowledged is None else max(highest, self.acknowledged)
            del self._waiting[:end]

    def _is_acknowledged(self, number: int) -> bool:
        return self._watermark is not None and number <= self._watermark

    def _has(self, number: int) -> bool:
        at = bisect_left(self._numbers, number)
        return at < len(self._numbers) and self._numbers[at] == number
