"""The gaps of a chain: the blocks between the intended range and the blocks that are stored. Pure; it fetches nothing.

Source: specs/backfill.md, "Design", and facts/block_node.md §5.2.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from block_node.persist.ranges import BlockRange, BlockRanges
from block_node.persist.schema import NUMBER_MAX


class Kind(enum.Enum):
    """The kind of a gap. HISTORICAL: below the next block of the verified chain. LIVE_TAIL: from that block on."""

    HISTORICAL = "historical"
    LIVE_TAIL = "live_tail"


class Gap(NamedTuple):
    """A run of missing blocks from `first` to `last`, both included; it may be a single block."""

    kind: Kind
    first: int
    last: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The facts from which gaps are computed.

    known: blocks that are stored, or were stored and then removed by retention. next_block: the next block of the
    verified chain. newest_known: the highest block that the network is known to have. sources_last: the highest block
    of the sources. follows: whether blocks are wanted that only sources have.
    """

    known: BlockRanges
    next_block: int
    newest_known: int | None = None
    sources_last: int | None = None
    follows: bool = False


def intended_range(first_available: int, last_to_store: int, view: View) -> BlockRange | None:
    """Returns the range of blocks that this node should have; None if there is no such block yet. last_to_store: -1
    means no end."""
    ends = [view.known.last, view.newest_known, view.next_block - 1]
    if view.follows:
        ends.append(view.sources_last)
    end = min(NUMBER_MAX, max((each for each in ends if each is not None), default=-1))
    if last_to_store >= 0:
        end = min(end, last_to_store)
    return BlockRange(first_available, end) if end >= first_available else None


def find_gaps(intended: BlockRange | None, view: View) -> list[Gap]:
    """Returns the gaps in ascending order. A hole that extends across `next_block` becomes two gaps."""
    if intended is None:
        return []
    gaps = []
    for first, last in view.known.missing(intended.first, intended.last):
        if first < view.next_block:
            gaps.append(Gap(Kind.HISTORICAL, first, min(last, view.next_block - 1)))
        if last >= view.next_block:
            gaps.append(Gap(Kind.LIVE_TAIL, max(first, view.next_block), last))
    return gaps


def count_blocks(gaps: Iterable[Gap]) -> int:
    return sum(gap.last - gap.first + 1 for gap in gaps)


def without(gaps: Iterable[Gap], taken: BlockRanges) -> list[Gap]:
    """Returns the parts of the gaps that are not in `taken`, the blocks that a filler is already fetching."""
    return [Gap(gap.kind, *rest) for gap in gaps for rest in taken.missing(gap.first, gap.last)]


class _Patience(msgspec.Struct):
    missing: int
    doublings: int
    not_before_s: float


class GapPatience:
    """Decides how long a gap that did not shrink is left alone: scan interval · 2^k, up to a bound. The caller passes
    all times, in seconds.

    A gap is identified by its first block, because it is only filled from there on or from its end.
    """

    def __init__(self, interval_s: float, backoff_s_max: float) -> None:
        self._interval_s = interval_s
        self._backoff_s_max = backoff_s_max
        self._gaps: dict[int, _Patience] = {}

    def due(self, gaps: Iterable[Gap], now_s: float, busy: Collection[Kind] = ()) -> list[Gap]:
        """Returns the gaps that should be tried now, and notes that they are tried. Forgets every gap that is not among
        `gaps` any more.

        busy: gaps of these kinds are not tried now, and so are not noted.
        """
        before, self._gaps = self._gaps, {}
        found = []
        for gap in gaps:
            missing = gap.last - gap.first + 1
            patience = before.get(gap.first)
            if gap.kind in busy:
                if patience is not None:
                    self._gaps[gap.first] = patience
                continue
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
        """Forgets all waiting times, because an operator asked for a scan now."""
        self._gaps.clear()
