"""ClockMachine: computes the time from a wall clock that may jump and a steady clock that never jumps.

The machine does not read the clocks itself. Messages are stored with the computed time, and retention by age uses it.

The wall clock jumps if, between two readings, it moves more than TOLERANCE_US farther or less far than the steady
clock. After a jump the machine does not trust the wall clock: the computed time continues with the steady clock, and no
message is deleted for its age. If the steady clock falls, the computed time goes on from where it was. The machine
trusts the wall clock again

- when the wall clock has jumped back, so that it agrees with the computed time;
- when `trust_after_us` have passed since the jump.

When the node starts, the machine trusts the wall clock, with two exceptions:

- The wall clock has jumped since the node last ran. The machine sees this from the offset (wall clock minus steady
  clock) that the node has stored, if the computer was not restarted since then.
- No offset is stored, and the wall clock is more than TOLERANCE_US before the newest stored message. Then the machine
  also trusts the wall clock as soon as it has reached the time of that message.
"""

from __future__ import annotations

import enum

TOLERANCE_US = 10_000_000
"""The largest change of the wall clock that is not a jump, in microseconds. The computed time follows such a change."""


class Turn(enum.Enum):
    """A change that a reading of the clocks has shown.

    JUMPED: the wall clock has jumped.
    BACK: the wall clock is back at its old time, or has reached the newest stored message.
    ACCEPTED: the new time of the wall clock is trusted.
    """

    JUMPED = enum.auto()
    BACK = enum.auto()
    ACCEPTED = enum.auto()


class ClockMachine:
    """The trusted time of a node. All times are in microseconds. An offset is the wall clock minus the steady clock.

    newest_us: the time of the newest stored message.
    trust_after_us: how long a new time must last until it is trusted; 0 trusts every jump at once.
    known_offset_us: the offset that the node has stored since the computer was started; None if it has stored none.

    Invariant: while the wall clock is trusted, `_candidate_us` is None. Otherwise `_candidate_us` is the offset that
    the wall clock has had since `_since_us`.
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
        """Whether the wall clock has jumped and its new time is not trusted yet."""
        return self._candidate_us is not None

    def time_us(self, steady_us: int) -> int:
        """Returns the trusted time, in microseconds since 1970.

        steady_us: the present reading of the steady clock.
        """
        return steady_us + self.offset_us

    def jump_us(self) -> int:
        """Returns how far the wall clock is ahead of the trusted time, in microseconds.

        The result is negative if the wall clock is behind the trusted time, and 0 if the wall clock is trusted.
        """
        return 0 if self._candidate_us is None else self._candidate_us - self.offset_us

    def look(self, wall_us: int, steady_us: int) -> Turn | None:
        """Processes one reading of both clocks. Returns the change that the reading shows, or None if there is none."""
        # The steady clock falls when a virtual machine goes on from a snapshot. The computed time does not follow it.
        fallen_us, self._steady_us = self._steady_us - steady_us, steady_us
        if fallen_us > 0:
            self.offset_us += fallen_us
            self._since_us -= fallen_us
            self._candidate_us = None if self._candidate_us is None else self._candidate_us + fallen_us
        offset_us = wall_us - steady_us
        ahead_us = offset_us - self.offset_us
        # The wall clock agrees with the trusted time, or it has caught up with the newest stored message: trust it.
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
