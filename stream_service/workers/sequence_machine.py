"""Which sequenced pushes of one stream are new, and where those stored before are. Pure: no storage, no clock.

A publisher numbers its messages 1 apart, from any start. A number seen before is a duplicate, the next one is new, and
one that skips is out of order: something between was lost, and storing it would hide that. What is decided in a run is
tentative until the run is on disk.

    number            answer          stored
    first ever        NEW             yes (DUPLICATE where this very message is remembered)
    last + 1          NEW             yes
    last + 2 or more  OUT_OF_ORDER    no, tells last + 1
    last or less      DUPLICATE       no, tells its index (0 where RECENT_MAX newer ones are stored)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

PUBLISHERS_MAX = 10_000
"""A stream remembers at most this many publishers; it forgets the one unused for longest."""
LOADED_MAX = 100_000
"""After a restart the latest messages of a stream, this many, are searched for publishers and their numbers."""
RECENT_MAX = 20_000
"""How many stored messages are remembered with their index, of all publishers of a stream together: more than clients
have on their way, and 5 MB of memory at most, for each stream with such publishers."""


class New(msgspec.Struct, frozen=True):
    """To be stored."""


class Duplicate(msgspec.Struct, frozen=True):
    """Stored before at `index`; or, with `offset`, it will be: that many messages after the begin of this run."""

    index: int | None = None
    offset: int | None = None


class OutOfOrder(msgspec.Struct, frozen=True):
    expected: int


Decision = New | Duplicate | OutOfOrder


class SequenceMachine:
    """The numbers of all publishers of one stream.

    Invariant: `_tentative` is empty between runs.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._recent: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._tentative: dict[bytes, dict[int, int]] = {}

    def remember(self, stored: Iterable[tuple[bytes, int, int]]) -> None:
        """Take in what is on disk: publisher, number and index of each message, oldest first."""
        for publisher_id, sequence, index in stored:
            self._learn(publisher_id, sequence, index)

    def decide(self, publisher_id: bytes, sequence: int, offset: int) -> Decision:
        """What to do with a message that would be the `offset`th of this run to be stored."""
        tentative = self._tentative.get(publisher_id)
        last = next(reversed(tentative)) if tentative else self._last.get(publisher_id)
        if last is None and (known := self._recent.get((publisher_id, sequence))) is not None:
            # The publisher was forgotten among so many, and its message was not.
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
        """The run is on disk, from this index on."""
        tentative, self._tentative = self._tentative, {}
        for publisher_id, numbers in tentative.items():
            for sequence, offset in numbers.items():
                self._learn(publisher_id, sequence, first_index + offset)

    def refused(self) -> None:
        """Nothing of the run was stored."""
        self._tentative = {}

    def _learn(self, publisher_id: bytes, sequence: int, index: int) -> None:
        self._last[publisher_id] = max(sequence, self._last.get(publisher_id, sequence))
        self._last.move_to_end(publisher_id)
        self._recent[publisher_id, sequence] = index
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        if len(self._last) > PUBLISHERS_MAX:
            self._last.popitem(last=False)
