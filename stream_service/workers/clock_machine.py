"""ClockMachine: computes the time from a wall clock that may jump and a steady clock that never jumps.

The wall clock jumps if, between two readings, it moves more than TOLERANCE_US farther or less far than the steady
clock. After a jump it is not trusted: the time continues with the steady clock (and stands still if the steady clock
goes back), and no message is deleted for its age. The wall clock is trusted again

- when it has jumped back, so that it agrees with the computed time;
- when `trust_after_us` have passed since the jump.

When the node starts, the wall clock is trusted, with two exceptions:

- It has jumped since the node last ran. The stored offset shows this if the computer was not restarted since then.
- No offset is stored, and it is more than TOLERANCE_US before the newest stored message. Then the computed time begins
  at the time of that message, and the wall clock is also trusted as soon as it is ahead of the computed time.
"""

from __future__ import annotations

import enum

TOLERANCE_US = 10_000_000
"""The largest change of the wall clock that is not a jump, in microseconds."""


class Turn(enum.Enum):
    """A change that a reading of the clocks has shown."""

    JUMPED = enum.auto()  # the wall clock has jumped
    BACK = enum.auto()  # the wall clock agrees with the computed time again, or is ahead after a start behind it
    ACCEPTED = enum.auto()  # the new time of the wall clock is trusted


class ClockMachine:
    """The trusted time of a node. All times are in microseconds. An offset is the wall clock minus the steady clock.

    newest_us: the time of the newest stored message.
    trust_after_us: how long a new time must last until it is trusted; 0 trusts every jump at once.
    known_offset_us: the offset that the node has stored since the computer was started, or None.

    Invariant: while the wall clock is trusted, `_candidate_us` is None. Otherwise it is the offset that the wall clock
    has had since `_since_us`.
    """

    def __init__(
        self, wall_us: int, steady_us: int, *, newest_us: int, trust_after_us: int, known_offset_us: int | None = None
    ) -> None:
        self._trust_after_us = trust_after_us
        self._candidate_us: int | None = None
        self._since_us = 0
        self._steady_us = steady_us
        self._starts_behind = known_offset_us is None and newest_us > wall_us + TOLERANCE_US
        if self._starts_behind:
            self.offset_us = newest_us - steady_us
        else:
            self.offset_us = wall_us - steady_us if known_offset_us is None else known_offset_us

    @property
    def in_doubt(self) -> bool:
        return self._candidate_us is not None

    def time_us(self, steady_us: int) -> int:
        return steady_us + self.offset_us

    def jump_us(self) -> int:
        """Returns how far the wall clock is ahead of the trusted time, or behind it if negative, in microseconds."""
        return 0 if self._candidate_us is None else self._candidate_us - self.offset_us

    def look(self, wall_us: int, steady_us: int) -> Turn | None:
        """Processes one reading of both clocks. Returns the change that it shows, or None."""
        # The steady clock falls when a virtual machine goes on from a snapshot. The computed time does not follow it.
        fallen_us, self._steady_us = self._steady_us - steady_us, steady_us
        if fallen_us > 0:
            self.offset_us += fallen_us
            self._since_us -= fallen_us
            self._candidate_us = None if self._candidate_us is None else self._candidate_us + fallen_us
        offset_us = wall_us - steady_us
        ahead_us = offset_us - self.offset_us
        # The wall clock agrees with the trusted time, or it began behind the newest message and is ahead now: trust it.
        if abs(ahead_us) <= TOLERANCE_US or (self._starts_behind and ahead_us > 0):
            was_in_doubt, self._starts_behind = self.in_doubt, False
            self.offset_us, self._candidate_us = offset_us, None
            return Turn.BACK if was_in_doubt else None
        turn = None
        # A jump, or a second jump during the doubt: the time that the new time must last begins now.
        if self._candidate_us is None or abs(offset_us - self._candidate_us) > TOLERANCE_US:
            self._since_us, turn = steady_us, Turn.JUMPED
        self._candidate_us = offset_us
        # The new time has lasted long enough.
        if steady_us - self._since_us >= self._trust_after_us:
            self.offset_us, self._candidate_us, self._starts_behind = offset_us, None, False
            turn = Turn.ACCEPTED
        return turn
