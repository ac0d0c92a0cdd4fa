"""PublisherSequences: decides whether a push with a sequence number is new, a duplicate or out of order. No I/O.

A publisher begins with any number, and each later number is higher by 1. A known number is a duplicate. The next number
is new. A number that skips others is out of order: an earlier message was lost, and storing this one would hide the
loss. The pushes of one append are a run. The decisions of a run are tentative until its messages are on disk.

    number            decision        stored    the answer contains
    first ever        NEW             yes       its index
    last + 1          NEW             yes       its index
    last + 2 or more  OUT_OF_ORDER    no        last + 1
    last or less      DUPLICATE       no        its index, unless RECENT_MAX newer messages are stored

A stream remembers only some publishers. If a publisher is forgotten, its next push counts as its first. But if the
index of that push's message is still remembered, the push is a DUPLICATE.

If the node has access rules, a publisher id belongs to the identity that used it first (`claim`). Otherwise another
publisher could push under that id, and the pushes of its owner would be taken for duplicates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from stream_service.publisher_rows import MARK, PUBLISHERS_MAX, PublisherRow

RECENT_MAX = 20_000
"""The number of stored messages whose indexes a stream remembers, over all publishers, in at most 5 MB. A client never
has so many unconfirmed messages."""


class New(msgspec.Struct, frozen=True):
    pass


class Duplicate(msgspec.Struct, frozen=True):
    """The decision that a message was stored before. Neither field is set if the index of the message is forgotten."""

    index: int | None = None  # the index of the message, if it is already on disk
    offset: int | None = None  # the position of the message in the present append, if the append has it


class OutOfOrder(msgspec.Struct, frozen=True):
    expected: int


Decision = New | Duplicate | OutOfOrder


class PublisherSequences:
    """The sequence numbers of all publishers of one stream.

    rows, begin, is_exact: the fields of `stream_service.publisher_rows.KnownSequences`.

    Invariant: `_tentative` and `_claims` are empty between runs. A run is the pushes of one append. `_publishers` is in
    the order of the last messages. `_unnoted` has the publishers whose owners are not stored yet, and `_gone` those
    that are forgotten but have a stored row.
    """

    def __init__(
        self,
        rows: Mapping[bytes, PublisherRow] = {},
        *,
        begin: int = 0,
        is_exact: bool = True,
    ) -> None:
        self._publishers: OrderedDict[bytes, PublisherRow] = OrderedDict()
        self._recent: OrderedDict[tuple[bytes, int], int] = OrderedDict()
        self._tentative: dict[bytes, dict[int, int]] = {}
        self._claims: dict[bytes, str] = {}
        self._unnoted: set[bytes] = set()
        self._gone: set[bytes] = set()
        self._begin = begin
        # Rows that are not exact are written anew with the next mark, as they are known here.
        self._noted_until = begin if is_exact else 0
        self._lacks_mark = is_exact and MARK not in rows
        for publisher_id, row in rows.items():
            if publisher_id != MARK:
                known = row if is_exact else msgspec.structs.replace(row, sequence=None)
                self._keep(publisher_id, known)

    def remember(self, stored: Iterable[tuple[bytes, int, int]]) -> None:
        """Remembers stored messages, oldest first: publisher id, sequence number and index of each."""
        for publisher_id, sequence, index in stored:
            self._learn(publisher_id, sequence, index)

    def claim(self, publisher_id: bytes, owner: str) -> bool:
        """Whether a publisher id belongs to this identity. An id of nobody belongs to the identity from now on."""
        known = self._publishers.get(publisher_id)
        if known is None:
            return self._claims.setdefault(publisher_id, owner) == owner
        if not known.owner:
            known = self._publishers[publisher_id] = msgspec.structs.replace(known, owner=owner)
            self._unnoted.add(publisher_id)
        return known.owner == owner

    def decide(self, publisher_id: bytes, sequence: int, offset: int) -> Decision:
        """Decides about one message. offset: the position that it would get among the new messages of the append."""
        tentative, known = self._tentative.get(publisher_id), self._publishers.get(publisher_id)
        last = next(reversed(tentative)) if tentative else None if known is None else known.sequence
        if last is None and publisher_id not in self._claims:
            # The publisher itself may be forgotten while this message is still remembered. But if its id was claimed in
            # this run, the remembered message can be that of another identity.
            index = self._recent.get((publisher_id, sequence))
            if index is not None:
                return Duplicate(index=index)
        if last is None or sequence == last + 1:
            self._tentative.setdefault(publisher_id, {})[sequence] = offset
            return New()
        if sequence > last:
            return OutOfOrder(last + 1)
        if tentative and sequence in tentative:
            return Duplicate(offset=tentative[sequence])
        return Duplicate(index=self._recent.get((publisher_id, sequence)))

    def notes(self, first_index: int) -> dict[bytes, PublisherRow]:
        """Returns the rows that the present append must write: of publishers without a stored owner, and a missing
        mark.

        first_index: the index of the append's first message, here and in `stored`.
        """
        found: dict[bytes, PublisherRow] = {}
        if self._tentative and self._lacks_mark:
            found[MARK] = PublisherRow("", None, self._begin)
        for publisher_id in self._tentative if self._claims or self._unnoted else ():
            if publisher_id in self._claims or publisher_id in self._unnoted:
                sequence, offset = next(reversed(self._tentative[publisher_id].items()))
                found[publisher_id] = PublisherRow(self._owner(publisher_id), sequence, first_index + offset)
        return found

    def stored(self, first_index: int) -> None:
        """Remembers the new messages of the present append, because it was stored."""
        tentative, self._tentative = self._tentative, {}
        if tentative:
            self._lacks_mark = False
        for publisher_id, numbers in tentative.items():
            for sequence, offset in numbers.items():
                self._learn(publisher_id, sequence, first_index + offset)
        self._unnoted.difference_update(tentative)
        self._claims.clear()

    def refused(self) -> None:
        """Forgets the new messages of the present append, because it was not stored."""
        self._tentative = {}
        self._claims.clear()

    def changes(self) -> dict[bytes, PublisherRow | None]:
        """Returns the rows that have changed since the mark; None for those that are to be deleted."""
        found: dict[bytes, PublisherRow | None] = dict.fromkeys(self._gone)
        for publisher_id, known in reversed(self._publishers.items()):
            if known.index < self._noted_until:
                break
            found[publisher_id] = known
        return found

    def noted(self, end: int, rows: Iterable[bytes]) -> None:
        """Remembers that the changed rows are stored, and the mark is at `end`."""
        self._noted_until = max(self._noted_until, end)
        self._lacks_mark = False
        self._gone.difference_update(rows)

    def _owner(self, publisher_id: bytes) -> str:
        known = self._publishers.get(publisher_id)
        return self._claims.get(publisher_id, "") if known is None else known.owner

    def _learn(self, publisher_id: bytes, sequence: int, index: int) -> None:
        self._keep(publisher_id, PublisherRow(self._owner(publisher_id), sequence, index))

    def _keep(self, publisher_id: bytes, known: PublisherRow) -> None:
        self._publishers[publisher_id] = known
        self._publishers.move_to_end(publisher_id)
        if known.sequence is not None:
            self._recent[publisher_id, known.sequence] = known.index
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        if len(self._publishers) > PUBLISHERS_MAX:
            gone, _ = self._publishers.popitem(last=False)
            self._gone.add(gone)
            self._unnoted.discard(gone)
