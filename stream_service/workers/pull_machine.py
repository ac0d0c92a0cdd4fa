"""PullMachine: decides in which order one stream answers its pulls, and which pulls must wait. It does no I/O.

A pull that was added and is not answered yet is in exactly one of these places:

    waiting ──────► batch ──────► answered          The oldest pulls are taken together, as one batch.
       ▲  │         ▲   │
       │  ▼         │   ├──► waiting, blocked       The read ended before it reached this pull.
       │ blocked ───┘   │
       │                ▼
       └──────────── long poll ──────► answered     There are new messages; or the deadline has passed.

A pull whose page comes in parts (`goes_on`) stays a long poll when there are new messages, and they are sent to it.

A blocked pull belongs to a slow consumer, which has not yet taken the answers to earlier pulls. Each slow consumer has
its own queue of blocked pulls, so that it does not delay other consumers.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

PULLS_WAITING_MAX = 10_000
"""The number of waiting pulls at which the stream's mailbox is paused."""
PULLS_PER_BATCH_MAX = 256
"""The largest number of pulls in a batch."""
LONG_POLLS_MAX = 10_000
"""The largest number of pulls of one stream that wait for a new message. A further pull gets an empty page at once."""


class PullState(enum.IntEnum):
    """The state of the queue of pulls."""

    READY = enum.auto()  # a batch of pulls can be taken, unless they are held
    READING = enum.auto()  # a reading thread reads the pages of a batch
    YIELDING = enum.auto()  # a full page was sent, and the other workers of the node run next
    CLOSED = enum.auto()  # the worker has stopped


class PullEvent(enum.IntEnum):
    """The events that change the state of the queue of pulls."""

    READ_BEGUN = enum.auto()  # a reading thread begins to read the pages of a batch
    READ_ENDED = enum.auto()
    TURN_YIELDED = enum.auto()  # a full page was sent, and the other workers of the node run next
    TURN_CAME = enum.auto()  # the other workers have run
    CLOSE = enum.auto()


# Module names for the members: looking up a member in its enumeration takes longer than a transition.
READY, READING, YIELDING, CLOSED = PullState
READ_BEGUN, READ_ENDED, TURN_YIELDED, TURN_CAME, CLOSE = PullEvent

# The state after each event. If an event occurs that is missing for its state, this program has a mistake. A batch is
# taken only in READY, so at most one read is under way.
TRANSITIONS: dict[PullState, dict[PullEvent, PullState]] = {
    READY: {READ_BEGUN: READING, TURN_YIELDED: YIELDING, CLOSE: CLOSED},
    READING: {READ_ENDED: READY, CLOSE: CLOSED},
    YIELDING: {TURN_CAME: READY, CLOSE: CLOSED},
    # Work that began before the close may still end. No work begins.
    CLOSED: {READ_ENDED: CLOSED, TURN_CAME: CLOSED, CLOSE: CLOSED},
}


class WaitingPull(Protocol):
    """An unanswered pull. deadline_s: the end of its wait, in seconds; 0: it must not wait. A sent part extends it.
    goes_on: whether the pull stays a long poll when a message has come."""

    @property
    def consumer(self) -> Hashable: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def goes_on(self) -> bool: ...


P = TypeVar("P", bound=WaitingPull)


class PullMachine(Generic[P]):
    """The queue of unanswered pulls of one stream, and its state.

    is_behind: returns whether a consumer has not taken earlier answers yet, or waits for room in memory for a large
    answer.
    is_held: whether no batch is taken in any state, because earlier pushes are not on disk yet.

    Invariant: each pull is in one place only. `_batch` contains pulls only while they are being read or answered.
    `_blocked` has at least one pull for each consumer in it. `_caught_up` has the consumers in `_blocked` that have
    taken their answers by now, so that their pulls are next. Each long poll is in `_deadlines`. When the machine is
    closed, no pull waits. `check` checks all of this.
    """

    def __init__(self, is_behind: Callable[[Any], bool]) -> None:
        self._is_behind = is_behind
        self.state = READY
        self.is_held = False
        self._waiting: deque[P] = deque()
        self._batch: list[P] = []
        self._blocked: dict[Hashable, deque[P]] = {}
        self._caught_up: dict[Hashable, None] = {}
        self._prefers_unblocked = False
        self.long_polls: dict[P, None] = {}
        self._deadlines: list[tuple[float, int, P]] = []
        self._parked_count = 0

    def note(self, event: PullEvent) -> None:
        assert not self.is_held or event not in (READ_BEGUN, TURN_YIELDED), "pulls that are held are not answered"
        self.state = TRANSITIONS[self.state][event]

    @property
    def can_take(self) -> bool:
        return self.state is READY and not self.is_held and bool(self._waiting or self._caught_up)

    @property
    def is_idle(self) -> bool:
        waits = self._waiting or self._batch or self._blocked or self.long_polls
        return self.state is READY and not self.is_held and not waits

    @property
    def is_full(self) -> bool:
        """Whether too many pulls wait. Blocked pulls do not count, so that a slow consumer stops no other."""
        return len(self._waiting) >= PULLS_WAITING_MAX

    def add(self, pull: P) -> None:
        self._waiting.append(pull)

    def take(self) -> tuple[list[P], list[P], list[P]]:
        """Takes the next batch. In it, waiting pulls alternate with blocked pulls whose consumers have taken their
        earlier answers. Returns the batch, the pulls that became blocked, and those of the batch that were blocked.

        The caller must call `finish` or `end_read` afterwards.
        """
        pulls = self._batch
        blocked: list[P] = []
        unblocked: list[P] = []
        free: Hashable = None
        while len(pulls) < PULLS_PER_BATCH_MAX:
            # A read may end after its first pages. So waiting and blocked pulls alternate from the beginning of the
            # batch.
            self._prefers_unblocked = not self._prefers_unblocked
            pull = self._take_unblocked(unblocked) if self._prefers_unblocked and self._caught_up else None
            while pull is None and self._waiting:
                pull = self._waiting.popleft()
                consumer = pull.consumer
                # Nothing is sent while a batch is taken. So a consumer that was not slow a moment ago is still not
                # slow.
                if consumer is free:
                    break
                if consumer in self._blocked or self._is_behind(consumer):
                    # A consumer gets its answers in order. So a pull is also blocked if an earlier pull of the consumer
                    # is blocked.
                    self._blocked.setdefault(consumer, deque()).append(pull)
                    blocked.append(pull)
                    pull = None
                else:
                    free = consumer
            if pull is None:
                pull = self._take_unblocked(unblocked)
                if pull is None:
                    break
            pulls.append(pull)
        return pulls, blocked, unblocked

    def begin_read(self) -> None:
        assert self._batch, "nothing was taken"
        self.note(READ_BEGUN)

    def end_read(self, count: int) -> tuple[list[P], list[P]]:
        """Does what `finish` does, after a read of the pages of the first `count` pulls."""
        self.note(READ_ENDED)
        return self.finish(count)

    def finish(self, count: int) -> tuple[list[P], list[P]]:
        """Ends the batch. Returns its first `count` pulls, which can be answered, and those that are blocked again.

        The others go back to the front of their queues; when the machine is closed, they are dropped.
        """
        batch, self._batch = self._batch, []
        if count >= len(batch):
            return batch, []
        blocked = []
        if self.state is not CLOSED:
            for pull in reversed(batch[count:]):
                of_consumer = self._blocked.get(pull.consumer)
                if of_consumer is None:
                    self._waiting.appendleft(pull)
                else:
                    of_consumer.appendleft(pull)
                    blocked.append(pull)
        return batch[:count], blocked

    def has_blocked(self, consumer: Hashable) -> bool:
        return consumer in self._blocked

    def unblock(self, consumer: Hashable) -> bool:
        """Puts the blocked pulls of a consumer next if it has taken enough answers. Returns whether it has done so."""
        if consumer not in self._blocked or self._is_behind(consumer):
            return False
        self._caught_up[consumer] = None
        return True

    def drop_blocked(self, consumer: Hashable) -> Sequence[P]:
        """Removes and returns the blocked pulls of a consumer whose connection has ended."""
        self._caught_up.pop(consumer, None)
        return self._blocked.pop(consumer, ())

    def park(self, pull: P, now_s: float) -> bool:
        """Turns a pull that found no message into a long poll. Returns False if the pull must be answered now."""
        if pull.deadline_s <= now_s or len(self.long_polls) >= LONG_POLLS_MAX or self.state is CLOSED:
            return False
        self._parked_count += 1
        self.long_polls[pull] = None
        # The number orders equal deadlines, because pulls cannot be compared.
        heapq.heappush(self._deadlines, (pull.deadline_s, self._parked_count, pull))
        return True

    def unpark(self, pull: P) -> bool:
        """Ends a long poll before its deadline. Returns False if it has ended already."""
        if pull not in self.long_polls:
            return False
        del self.long_polls[pull]
        self._forget_ended()
        return True

    def wake(self) -> list[P]:
        """Ends and returns all long polls except those that go on. The ended ones queue again, oldest first."""
        woken = [pull for pull in self.long_polls if not pull.goes_on]
        for pull in woken:
            del self.long_polls[pull]
        self._forget_ended()
        self._waiting += woken
        return woken

    def _forget_ended(self) -> None:
        # Long polls that have ended must not fill the memory, so the heap is made anew: a sorted list is a heap.
        if len(self._deadlines) > 2 * len(self.long_polls):
            self._deadlines = sorted((pull.deadline_s, at, pull) for at, pull in enumerate(self.long_polls))

    @property
    def next_deadline_s(self) -> float:
        """The time in seconds at which `end_late` should be called next; infinity: never."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def end_late(self, now_s: float) -> list[P]:
        """Ends and returns the long polls whose deadline has passed."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number, pull = heapq.heappop(self._deadlines)
            # A part was sent meanwhile, which has extended the deadline of the pull.
            if pull in self.long_polls and pull.deadline_s > now_s:
                heapq.heappush(self._deadlines, (pull.deadline_s, number, pull))
            elif self.unpark(pull):
                late.append(pull)
        return late

    def clear(self) -> tuple[list[P], list[P], list[P]]:
        taken = list(self._waiting), list(chain.from_iterable(self._blocked.values())), list(self.long_polls)
        for place in (self._waiting, self._blocked, self._caught_up, self.long_polls, self._deadlines):
            place.clear()
        return taken

    def take_batch(self) -> list[P]:
        """Removes and returns the pulls that are being read. The end of the read then changes nothing."""
        batch, self._batch = self._batch, []
        return batch

    def check(self) -> None:
        """Asserts the invariant, for tests."""
        assert bool(self._batch) == (self.state is READING) or self.state is CLOSED
        assert self._caught_up.keys() <= self._blocked.keys()
        assert all(self._blocked.values())
        for consumer, blocked in self._blocked.items():
            assert {pull.consumer for pull in blocked} == {consumer}
        assert self.long_polls.keys() <= {pull for _, _, pull in self._deadlines}
        places = [*self._waiting, *self._batch, *chain.from_iterable(self._blocked.values()), *self.long_polls]
        assert len(places) == len(set(map(id, places)))
        if self.state is CLOSED:
            assert not any((self._waiting, self._blocked, self.long_polls))

    def _take_unblocked(self, unblocked: list[P]) -> P | None:
        """Takes a pull of the next consumer that has caught up, and notes it in `unblocked`; None if there is none."""
        while self._caught_up:
            consumer = next(iter(self._caught_up))
            del self._caught_up[consumer]
            if self._is_behind(consumer):
                # More answers were sent to the consumer since, so it is slow again. `unblock` is called when it has
                # taken them.
                continue
            blocked = self._blocked[consumer]
            pull = blocked.popleft()
            if blocked:
                self._caught_up[consumer] = None
            else:
                del self._blocked[consumer]
            unblocked.append(pull)
            return pull
        return None
