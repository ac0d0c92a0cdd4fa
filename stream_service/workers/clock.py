"""Clock: the clock of a node's streams. It reads the computer's clocks for a ClockMachine, and logs each jump once."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from stream_service.publisher_rows import FORGET_S, Times
from stream_service.workers.clock_machine import ClockMachine, Turn

logger = structlog.get_logger(__name__)


class Clock:
    """The clock that gives the time of appends and of retention. It is read often, so it soon notices a jump.

    wall_us: reads the wall clock, in microseconds since 1970.
    steady_s: reads a clock that never jumps, in seconds.
    trust_after_s: how long a new time of the wall clock must last until it is trusted, in seconds; 0: it is trusted at
    once.
    note_offset: stores the trusted offset for the next start, in microseconds. Called when it has changed by NOTED_US.
    """

    def __init__(
        self,
        wall_us: Callable[[], int],
        steady_s: Callable[[], float],
        *,
        newest_us: int = 0,
        trust_after_s: float = 0.0,
        known_offset_us: int | None = None,
        note_offset: Callable[[int], None] | None = None,
    ) -> None:
        self.wall_us = wall_us
        self._steady_s = steady_s
        self._note_offset = note_offset
        self._machine = ClockMachine(
            wall_us(),
            self._steady_us(),
            newest_us=newest_us,
            trust_after_us=int(trust_after_s * 1_000_000),
            known_offset_us=known_offset_us,
        )
        self._trust_after_s = trust_after_s
        self._noted_us: int | None = known_offset_us
        self.time_us()

    @property
    def in_doubt(self) -> bool:
        """Whether the wall clock has jumped and is not trusted yet. Meanwhile no message is deleted for its age."""
        self.time_us()
        return self._machine.in_doubt

    def time_us(self) -> int:
        steady_us = self._steady_us()
        turn = self._machine.look(self.wall_us(), steady_us)
        if turn is not None:
            self._say(turn)
        if self._noted_us is None or abs(self._machine.offset_us - self._noted_us) > NOTED_US:
            self._noted_us = self._machine.offset_us
            if self._note_offset is not None:
                self._note_offset(self._noted_us)
        return self._machine.time_us(steady_us)

    def times(self) -> Times:
        """Returns the present time, and the time before which publishers are forgotten (0 while in doubt)."""
        now_us = self.time_us()
        return Times(now_us, 0 if self._machine.in_doubt else now_us - FORGET_S * 1_000_000)

    def _steady_us(self) -> int:
        return int(self._steady_s() * 1_000_000)

    def _say(self, turn: Turn) -> None:
        if turn is Turn.JUMPED:
            logger.warning(
                "clock_jumped",
                by_s=round(self._machine.jump_us() / 1e6, 3),
                trusted_in_s=self._trust_after_s,
                do="until then nothing is deleted for its age, and messages get the time as it was before; set the "
                "clock right, or, if the new time is right, restart the node with clock_trust_s=0",
            )
        elif turn is Turn.BACK:
            logger.info("clock_back")
        else:
            logger.warning("clock_accepted", do="messages get the new time, and retention by age goes on")


NOTED_US = 1_000_000
"""The change of the trusted offset (wall clock minus steady clock), in microseconds, above which it is stored again."""
