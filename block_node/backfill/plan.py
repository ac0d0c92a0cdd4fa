"""Computes the gaps of a chain: the blocks that this node should have and does not have. No I/O.

Source: specs/backfill.md, "Design", and facts/block_node.md §5.2.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from block_node.persist.ranges import BlockRanges, NumberRange
from block_node.persist.schema import NUMBER_MAX


class Kind(enum.Enum):
    """The position of a gap: below the next block of the verified chain, or from that block upwards."""

    HISTORICAL = "historical"
    LIVE_TAIL = "live_tail"


class BlockGap(NamedTuple):
    kind: Kind
    first: int
    last: int


class GapFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts from which gaps are computed. known: the blocks that are stored, or were deleted by retention.
    newest_known: the highest block that publishers have announced. sources_last: the highest block of the source nodes.
    follows: whether to have all blocks up to `sources_last`, even if no publisher has announced them.
    """

    known: BlockRanges
    next_block: int
    newest_known: int | None = None
    sources_last: int | None = None
    follows: bool = False


def intended_range(first_available: int, last_to_store: int, view: GapFacts) -> NumberRange | None:
    """Returns the range of blocks that this node should have, if any. last_to_store: -1 means no limit."""
    ends = [view.known.last, view.newest_known, view.next_block - 1]
    if view.follows:
        ends.append(view.sources_last)
    end = min(NUMBER_MAX, max((each for each in ends if each is not None), default=-1))
    if last_to_store >= 0:
        end = min(end, last_to_store)
    return NumberRange(first_available, end) if end >= first_available else None


def find_gaps(intended: NumberRange | None, view: GapFacts) -> list[BlockGap]:
    """Returns the gaps in ascending order. A gap that extends across `next_block` is split into two."""
    if intended is None:
        return []
    gaps = []
    for first, last in view.known.missing(intended.first, intended.last):
        if first < view.next_block:
            gaps.append(BlockGap(Kind.HISTORICAL, first, min(last, view.next_block - 1)))
        if last >= view.next_block:
            gaps.append(BlockGap(Kind.LIVE_TAIL, max(first, view.next_block), last))
    return gaps


def count_blocks(gaps: Iterable[BlockGap]) -> int:
    return sum(gap.last - gap.first + 1 for gap in gaps)


def without(gaps: Iterable[BlockGap], taken: BlockRanges) -> list[BlockGap]:
    return [BlockGap(gap.kind, *rest) for gap in gaps for rest in taken.missing(gap.first, gap.last)]


class _Patience(msgspec.Struct):
    missing: int
    doublings: int
    not_before_s: float


class GapPatience:
    """Decides when to try again to fill a gap that did not shrink. The pause starts at the interval between two
    searches, and doubles with each attempt. A gap is identified by its first block."""

    def __init__(self, interval_s: float, backoff_s_max: float) -> None:
        self._interval_s = interval_s
        self._backoff_s_max = backoff_s_max
        self._gaps: dict[int, _Patience] = {}

    def due(self, gaps: Iterable[BlockGap], now_s: float, busy: Collection[Kind] = ()) -> list[BlockGap]:
        """Returns the gaps to try now, none of a `busy` kind, and starts their next pauses. Forgets all other gaps."""
        before, self._gaps = self._gaps, {}
        found = []
        for gap in gaps:
            missing = gap.last - gap.first + 1
            patience = before.get(gap.first)
            if gap.kind in busy:
                if patience is not None:
                    self._gaps[gap.first] = patience
                continue
            # A new gap, or a gap whose size has changed, is tried at once.
            if patience is None or missing != patience.missing:
                self._gaps[gap.first] = _Patience(missing, 0, now_s)
                found.append(gap)
                continue
            self._gaps[gap.first] = patience
            if now_s >= patience.not_before_s:
                delay_s = min(self._backoff_s_max, self._interval_s * 2.0 ** min(patience.doublings, 32))
                patience.doublings += 1
                patience.not_before_s = now_s + delay_s
                found.append(gap)
        return found

    def forget(self) -> None:
        self._gaps.clear()
