"""SequenceMachine: decides whether a push with a sequence number is new, a duplicate or out of order. It does no I/O.

A publisher begins with any number, and each later number is higher by 1. A known number is a duplicate. The next number
is new. A number that skips others is out of order: an earlier message was lost, and storing this one would hide the
loss. The pushes of one append are a run. The decisions of a run are tentative until its messages are on disk.

    number            decision        stored    the answer contains
    first ever        NEW             yes       its index
    last + 1          NEW             yes       its index
    last + 2 or more  OUT_OF_ORDER    no        last + 1
    last or less      DUPLICATE       no        its index; 0 if RECENT_MAX newer messages are stored

A stream remembers only some publishers. If a publisher is forgotten, its next push counts as its first. But if the
index of that push's message is still remembered, the push is a DUPLICATE.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

PUBLISHERS_MAX = 10_000
"""The largest number of publishers that a stream remembers. Beyond that, the stream forgets the publisher that has sent
nothing for the longest time."""
LOADED_MAX = 100_000
"""The number of latest messages of a stream that are searched for sequence numbers after a restart."""
RECENT_MAX = 20_000
"""The number of stored messages whose indexes a stream remembers, over all publishers. A client never has so many
unconfirmed messages. The indexes take at most 5 MB for each stream that gets sequence numbers."""


class New(msgspec.Struct, frozen=True):
    """The decision that a message is new and must be stored."""


class Duplicate(msgspec.Struct, frozen=True):
    """The decision that a message is a duplicate. One of the two fields is set.

    index: the index of the message if it is already on disk; 0 if that index is forgotten.
    offset: the position of the message among the new messages of the present append, counted from 0, if the append
    contains the message already.
    """

    index: int | None = None
    offset: int | None = None


class OutOfOrder(msgspec.Struct, frozen=True):
    expected: int


Decision = New | Duplicate | OutOfOrder


class SequenceMachine:
    """The sequence numbers of all publishers of one stream.

    Invariant: `_tentative` is empty between runs. A run is the pushes of one append.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._recent: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._tentative: dict[bytes, dict[int, int]] = {}

    def remember(self, stored: Iterable[tuple[bytes, int, int]]) -> None:
        """Remembers the sequence numbers of stored messages.

        stored: publisher id, sequence number and index of each message, oldest first.
        """
        for publisher_id, sequence, index in stored:
            self._learn(publisher_id, sequence, index)

    def decide(self, publisher_id: bytes, sequence: int, offset: int) -> Decision:
        """Decides whether one message is new, a duplicate or out of order.

        offset: the position that the message would get among the new messages of the present append, counted from 0.
        """
        tentative = self._tentative.get(publisher_id)
        last = next(reversed(tentative)) if tentative else self._last.get(publisher_id)
        if last is None and (known := self._recent.get((publisher_id, sequence))) is not None:
            # The publisher itself is forgotten, but this message is still remembered.
            return Duplicate(index=known)
        if last is None or sequence == last + 1:
            self._tentative.setdefault(publisher_id, {})[sequence] = offset
            return New()
        if sequence > last:
            return OutOfOrder(last + 1)
        if tentative and sequence in tentative:
            return Duplicate(offset=tentative[sequence])
        return Duplicate(index=self._recent.get((publisher_id, sequence), 0))

    def stored(self, first_index: int) -> None:
        """Remembers the new messages of the present append, because it was stored.

        first_index: the index of its first message.
        """
        tentative, self._tentative = self._tentative, {}
        for publisher_id, numbers in tentative.items():
            for sequence, offset in numbers.items():
                self._learn(publisher_id, sequence, first_index + offset)

    def refused(self) -> None:
        """Forgets the new messages of the present append, because it was not stored. Their sequence numbers are unknown
        again."""
        self._tentative = {}

    def _learn(self, publisher_id: bytes, sequence: int, index: int) -> None:
        self._last[publisher_id] = max(sequence, self._last.get(publisher_id, sequence))
        self._last.move_to_end(publisher_id)
        self._recent[publisher_id, sequence] = index
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        if len(self._last) > PUBLISHERS_MAX:
            self._last.popitem(last=False)
