"""What a publisher sends next, and what its node's answers mean for that. Pure: no sockets, no clock, no items.

A block is kept until it is acknowledged; whatever the node asks for that is kept can be sent (again). The answers are
those of specs/block_publish.md and, for several publishers, of facts/block_node.md §2.7.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    PublishResponse,
    ResendBlock,
    SessionOpened,
    SkipBlock,
    StreamEnded,
)


class PublisherMachine:
    """The blocks of one publisher over all its sessions.

    acknowledged: the highest block that is known to be durable, with all before it. sending: the block under way.
    too_far_behind: the node lacks blocks that are not kept here (any more), and this session is in vain.
    ended: the node's last word in this session.
    Invariant: `_numbers` are the blocks that are kept, ascending, all above `acknowledged`.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._cursor = 0
        self._resend: int | None = None
        self._opened = False
        self.acknowledged: int | None = None
        self.sending: int | None = None
        self.too_far_behind = False
        self.ended: StreamEnded | None = None

    @property
    def kept(self) -> list[int]:
        """Blocks without an acknowledgement, ascending."""
        return self._numbers

    def add(self, number: int) -> bool:
        """One more block is there; False where it is acknowledged or there already."""
        at = bisect_left(self._numbers, number)
        known = at < len(self._numbers) and self._numbers[at] == number
        if known or (self.acknowledged is not None and number <= self.acknowledged):
            return False
        insort(self._numbers, number)
        return True

    def session_begins(self) -> None:
        """A new session: nothing of an earlier one is under way."""
        self.sending = self._resend = None
        self._opened = False
        self.too_far_behind = False
        self.ended = None

    def next_block(self) -> int | None:
        """The block to send now; None where there is nothing to send."""
        at = bisect_left(self._numbers, self._cursor)
        return self._numbers[at] if at < len(self._numbers) else None

    def begin(self, number: int) -> None:
        """The header of that block goes out."""
        self.sending = number

    def finish(self, number: int) -> None:
        """All of it is sent."""
        self._stop(number + 1)

    def take(self, response: PublishResponse) -> None:
        """What the node says. The block under way is to be given up where `sending` is None afterwards."""
        if isinstance(response, Acknowledgement):
            self._acknowledge(response.block_number)
        elif isinstance(response, SessionOpened):
            if self._opened:
                return
            self._opened = True
            self._acknowledge(response.last_block)
            lowest = self._numbers[0] if self._numbers else response.next_block
            self._cursor = response.next_block if response.next_block > lowest else lowest
        elif isinstance(response, SkipBlock):
            if response.block_number == self.sending:
                self._stop(response.block_number + 1)
        elif isinstance(response, DuplicateBlock):
            self._acknowledge(response.last_block)
            if self.sending == response.block_number:
                self._stop(response.last_block + 1)
        elif isinstance(response, Behind):
            self._acknowledge(response.last_block)
            self._stop(response.next_block)
            self.too_far_behind = not self._has(response.next_block)
        elif isinstance(response, ResendBlock):
            self._asked_again(response.block_number)
        else:
            self._acknowledge(response.last_block)
            self.sending = None
            self.ended = response

    def _asked_again(self, number: int) -> None:
        """Send it when the block under way is finished. What is not kept others must send."""
        if not self._has(number) or number == self.sending:
            return
        if self.sending is None:
            self._cursor = number
        else:
            self._resend = number if self._resend is None else min(self._resend, number)

    def _stop(self, cursor: int) -> None:
        self.sending = None
        self._cursor, self._resend = (cursor, None) if self._resend is None else (self._resend, None)

    def _acknowledge(self, number: int | None) -> None:
        if number is None or (self.acknowledged is not None and number <= self.acknowledged):
            return
        self.acknowledged = number
        del self._numbers[: bisect_left(self._numbers, number + 1)]
        self._cursor = max(self._cursor, number + 1)
        if self._resend is not None and self._resend <= number:
            self._resend = None
        if self.sending is not None and self.sending <= number:
            self._stop(number + 1)

    def _has(self, number: int) -> bool:
        at = bisect_left(self._numbers, number)
        return at < len(self._numbers) and self._numbers[at] == number
