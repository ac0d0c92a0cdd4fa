"""SequenceMachine: decides whether a push with a sequence number is new, a duplicate or out of order. Pure: no storage.

A publisher begins with any number, and each later number is higher by 1. A known number is a duplicate. The next number
is new. A number that skips others is out of order: a message between was lost, and storing this one would hide the
loss. The decisions of a run are tentative until the run is on disk.

    number            decision        stored    the answer contains
    first ever        NEW             yes       its index
    last + 1          NEW             yes       its index
    last + 2 or more  OUT_OF_ORDER    no        last + 1
    last or less      DUPLICATE       no        its index; 0 if RECENT_MAX newer messages are stored

If the publisher is forgotten but the message is remembered, the first number is a DUPLICATE, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

PUBLISHERS_MAX = 10_000
"""A stream remembers at most this many publishers. It forgets the one that has sent nothing for the longest time."""
LOADED_MAX = 100_000
"""After a restart, this many of the latest messages of a stream are searched for sequence numbers."""
RECENT_MAX = 20_000
"""The number of stored messages whose index a stream remembers, over all publishers. Clients have fewer messages on
their way. They take at most 5 MB for each stream that gets sequence numbers."""


class New(msgspec.Struct, frozen=True):
    """Decision: the message is new and must be stored."""


class Duplicate(msgspec.Struct, frozen=True):
    """Decision: the message is a duplicate.

    index: its index, if it is already on disk; 0 if that index is forgotten. offset: its position in the present run,
    counted from 0, if it is in this run.
    """

    index: int | None = None
    offset: int | None = None


class OutOfOrder(msgspec.Struct, frozen=True):
    expected: int


Decision = New | Duplicate | OutOfOrder


class SequenceMachine:
    """The sequence numbers of all publishers of one stream.

    Invariant: `_tentative` is empty between runs.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._recent: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._tentative: dict[bytes, dict[int, int]] = {}

    def remember(self, stored: Iterable[tuple[bytes, int, int]]) -> None:
        """Takes in stored messages: publisher id, sequence number and index of each, oldest first."""
        for publisher_id, sequence, index in stored:
            self._learn(publisher_id, sequence, index)

    def decide(self, publisher_id: bytes, sequence: int, offset: int) -> Decision:
        """Decides about one message. offset: its position among the messages of this run if it is stored, counted from
        0."""
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
        """Ends a run that was stored. first_index: the index of its first message."""
        tentative, self._tentative = self._tentative, {}
        for publisher_id, numbers in tentative.items():
            for sequence, offset in numbers.items():
                self._learn(publisher_id, sequence, first_index + offset)

    def refused(self) -> None:
        """Ends a run of messages that was not stored. The sequence numbers that `decide` found new in this run count as
        unknown again.
        """
        self._tentative = {}

    def _learn(self, publisher_id: bytes, sequence: int, index: int) -> None:
        self._last[publisher_id] = max(sequence, self._last.get(publisher_id, sequence))
        self._last.move_to_end(publisher_id)
        self._recent[publisher_id, sequence] = index
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        if len(self._last) > PUBLISHERS_MAX:
            self._last.popitem(last=False)
