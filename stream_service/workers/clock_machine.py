"""Which time it is, by a wall clock that may jump and a steady one that never does. Pure: it reads neither.

Messages are stamped with this time, and retention by age deletes by it. A jump is a change of the wall clock against
the steady one by more than TOLERANCE_US between two looks. After a jump time goes on as the steady clock counts it,
from where it was, and age is not trusted, until one of these:

    the wall clock is back where it was         its time holds, as if nothing had been
    the new time has lasted `trust_after_us`    the new time holds
    (at a start behind what is stored) the wall clock reaches the newest stored message: its time holds

At a start nothing tells a wrong clock from a long stop, so the clock is trusted, but for two cases: the machine has
not been started since the node last noted the time, and the clock has jumped meanwhile; or the clock stands before a
time that was trusted, or else before the newest stored message.
"""

from __future__ import annotations

import enum

TOLERANCE_US = 10_000_000
"""Clocks that are set a little, or run a little too fast, are followed."""


class Turn(enum.Enum):
    """What a look found: the clock has JUMPED; it is BACK where it was; its new time is ACCEPTED."""

    JUMPED = enum.auto()
    BACK = enum.auto()
    ACCEPTED = enum.auto()


class ClockMachine:
    """All times in microseconds; an offset is the wall clock less the steady one.

    known_offset_us: as it was noted by an earlier life of the node on this start of the machine; None where it was not.
    newest_us: the time of the newest stored message. trust_after_us: 0 believes every jump at once.
    Invariant: `_candidate_us` is an offset that the wall clock has had since `_since_us`, and None while it is trusted.
    """

    def __init__(
        self, wall_us: int, steady_us: int, *, newest_us: int, trust_after_us: int, known_offset_us: int | None = None
    ) -> None:
        self._trust_after_us = trust_after_us
        self._candidate_us: int | None = None
        self._since_us = 0
        self._starts_behind = known_offset_us is None and newest_us > wall_us + TOLERANCE_US
        if self._starts_behind:
            self.offset_us = newest_us - steady_us
        else:
            self.offset_us = wall_us - steady_us if known_offset_us is None else known_offset_us

    @property
    def in_doubt(self) -> bool:
        """Whether the clock has jumped, and neither of its times is trusted yet."""
        return self._candidate_us is not None

    def time_us(self, steady_us: int) -> int:
        """The time now."""
        return steady_us + self.offset_us

    def jump_us(self) -> int:
        """How far the wall clock is ahead of the trusted time; below 0 where it is behind."""
        return 0 if self._candidate_us is None else self._candidate_us - self.offset_us

    def look(self, wall_us: int, steady_us: int) -> Turn | None:
        """Take note of both clocks."""
        offset_us = wall_us - steady_us
        ahead_us = offset_us - self.offset_us
        if abs(ahead_us) <= TOLERANCE_US or (self._starts_behind and ahead_us > 0):
            was_in_doubt, self._starts_behind = self.in_doubt, False
            self.offset_us, self._candidate_us = offset_us, None
            return Turn.BACK if was_in_doubt else None
        turn = None
        if self._candidate_us is None or abs(offset_us - self._candidate_us) > TOLERANCE_US:
            self._since_us, turn = steady_us, Turn.JUMPED
        self._candidate_us = offset_us
        if steady_us - self._since_us >= self._trust_after_us:
            self.offset_us, self._candidate_us, self._starts_behind = offset_us, None, False
            turn = Turn.ACCEPTED
        return turn
