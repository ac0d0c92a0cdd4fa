"""The pulls of one stream that wait for a message: until there is one, their time is up, or their memory is needed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from ockam.worker import Worker

if TYPE_CHECKING:
    from stream_service.workers.pulls import Pull

PARKED_BYTES = 1_500
"""What a pull that waits takes in memory, beside the addresses of its return route."""


def size_in_memory(pull: Pull) -> int:
    """What a pull that waits is counted with, in bytes."""
    return PARKED_BYTES + sum([len(hop.value) for hop in pull.message.return_route])


class ParkedPulls:
    """Pulls that wait, oldest first. Each is counted among what its connection makes the node hold (`Origin.holdings`).

    give_up: answers pulls that have waited long enough.
    Invariant: a pull is in `_pulls` exactly while its connection's holdings have it. Each has its place in
    `_deadlines`, where places of pulls that are gone may be left. The timer for the first of them is the only one that
    does anything.
    """

    def __init__(self, worker: Worker, give_up: Callable[[Sequence[Pull]], None]) -> None:
        self._worker = worker
        self._give_up = give_up
        self._pulls: dict[int, Pull] = {}
        self._count = 0
        self._deadlines: list[tuple[float, int]] = []
        self._timer_at_s = math.inf

    def __len__(self) -> int:
        return len(self._pulls)

    def park(self, pull: Pull) -> None:
        self._count += 1
        self._pulls[self._count] = pull
        heapq.heappush(self._deadlines, (pull.deadline_s, self._count))
        self._ensure_timer()
        # Last, since it may need room and end what waits, this one too.
        pull.message.origin.holdings.park(pull, size_in_memory(pull), partial(self._yield, self._count))

    def take_all(self) -> list[Pull]:
        """All pulls that wait, oldest first; none waits any longer."""
        pulls = list(self._pulls.values())
        self._pulls.clear()
        self._deadlines.clear()
        for pull in pulls:
            pull.message.origin.holdings.unpark(pull)
        return pulls

    def _ensure_timer(self) -> None:
        if self._deadlines and self._deadlines[0][0] < self._timer_at_s:
            self._timer_at_s = self._deadlines[0][0]
            delay_s = self._timer_at_s - trio.current_time()
            self._worker.context.call_later(delay_s, partial(self._look, self._timer_at_s))

    def _look(self, timer_at_s: float) -> None:
        """A timer is up: give up the pulls whose time is."""
        if timer_at_s != self._timer_at_s:
            return
        self._timer_at_s = math.inf
        now_s = trio.current_time()
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            pull = self._pulls.pop(heapq.heappop(self._deadlines)[1], None)
            if pull is not None:
                pull.message.origin.holdings.unpark(pull)
                late.append(pull)
        self._ensure_timer()
        self._give_up(late)

    def _yield(self, number: int, answers: bool) -> None:
        """For the memory that it takes, or since its connection is gone: then it needs no answer."""
        pull = self._pulls.pop(number, None)
        if pull is not None:
            pull.message.origin.holdings.unpark(pull)
            if answers:
                self._give_up([pull])
