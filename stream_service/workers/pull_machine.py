"""The order in which one stream answers its pulls, as a machine: which pulls wait, which come next, and when none may.

It is pure: it reads no messages, sends nothing, and the time is a parameter. `workers.pulls` does these things for it.

The life of a pull. Each pull that is noted and not yet answered is in exactly one of these places:

    waiting ──────► batch ──────► answered          The oldest pulls are taken together, as one batch.
       ▲  │         ▲   │
       │  ▼         │   ├──► waiting, blocked       The read ended before it came to this pull.
       │ blocked ───┘   │
       │                ▼
       └──────────── long poll ──────► answered     There are new messages; or the deadline has passed.

A blocked pull belongs to a slow consumer: its connection has not yet taken the answers to earlier pulls. Blocked pulls
stay with their consumer, in order, so that a consumer that does not read delays nobody else.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

PULLS_WAITING_MAX = 10_000
"""While this many pulls wait, the stream takes no more messages from its mailbox, and its peers have to wait."""
PULLS_PER_BATCH_MAX = 256
"""One batch has at most this many pulls. Only a part of it is answered when that has `pull_bytes_max` of messages."""
LONG_POLLS_MAX = 10_000
"""At most this many pulls of one stream wait for a new message; a further one gets an empty page at once."""


class State(enum.IntEnum):
    """What the queue of pulls is doing. HELD means: a push that came before a waiting pull is not yet on disk."""

    READY = enum.auto()
    READING = enum.auto()
    YIELDING = enum.auto()
    HELD = enum.auto()
    READING_HELD = enum.auto()
    YIELDING_HELD = enum.auto()
    CLOSED = enum.auto()


class Event(enum.IntEnum):
    """What happens to the queue of pulls.

    HOLD: pushes are on their way to the disk. RELEASE: these pushes are stored or refused.
    READ_BEGUN, READ_ENDED: a reading thread reads the pages of a batch.
    TURN_YIELDED, TURN_CAME: a full page was sent, and everybody else on the node has a turn before the next one.
    """

    HOLD = enum.auto()
    RELEASE = enum.auto()
    READ_BEGUN = enum.auto()
    READ_ENDED = enum.auto()
    TURN_YIELDED = enum.auto()
    TURN_CAME = enum.auto()
    CLOSE = enum.auto()


# As names of the module, since looking a member up in its enumeration takes longer than a transition.
READY, READING, YIELDING, HELD, READING_HELD, YIELDING_HELD, CLOSED = State
HOLD, RELEASE, READ_BEGUN, READ_ENDED, TURN_YIELDED, TURN_CAME, CLOSE = Event

# A pair that is not in the table is a mistake of ours. A batch is taken in READY alone, so at most one read is under
# way, and no pull is answered before the pushes that came before it.
TRANSITIONS: dict[State, dict[Event, State]] = {
    READY: {
        HOLD: HELD,
        RELEASE: READY,
        READ_BEGUN: READING,
        TURN_YIELDED: YIELDING,
        CLOSE: CLOSED,
    },
    READING: {
        HOLD: READING_HELD,
        RELEASE: READING,
        READ_ENDED: READY,
        CLOSE: CLOSED,
    },
    YIELDING: {
        HOLD: YIELDING_HELD,
        RELEASE: YIELDING,
        TURN_CAME: READY,
        CLOSE: CLOSED,
    },
    HELD: {
        HOLD: HELD,
        RELEASE: READY,
        CLOSE: CLOSED,
    },
    READING_HELD: {
        HOLD: READING_HELD,
        RELEASE: READING,
        READ_ENDED: HELD,
        CLOSE: CLOSED,
    },
    YIELDING_HELD: {
        HOLD: YIELDING_HELD,
        RELEASE: YIELDING,
        TURN_CAME: HELD,
        CLOSE: CLOSED,
    },
    # What was begun before may still end; nothing begins.
    CLOSED: {
        HOLD: CLOSED,
        RELEASE: CLOSED,
        READ_ENDED: CLOSED,
        TURN_CAME: CLOSED,
        CLOSE: CLOSED,
    },
}


class WaitingPull(Protocol):
    """A pull as this machine needs it. deadline_s: until when it may wait for a message; 0 where it must not wait."""

    @property
    def consumer(self) -> Hashable: ...

    @property
    def deadline_s(self) -> float: ...


P = TypeVar("P", bound=WaitingPull)


class Batch(NamedTuple, Generic[P]):
    """The pulls to be answered next. blocked, unblocked: pulls that taking it has blocked, or has taken from there."""

    pulls: list[P]
    blocked: Sequence[P]
    unblocked: Sequence[P]


class PullMachine(Generic[P]):
    """The pulls of one stream that have no answer yet, and the state of their queue.

    is_behind: says of a consumer whether its connection has not yet taken the answers to earlier pulls.
    Invariant: each pull is in one place only. A batch is out exactly while it is read (or is being answered, within one
    turn). Each consumer in `_blocked` has pulls there; the consumers in `_caught_up` are among these. Each long poll
    has a place in `_deadlines`. When closed, nothing waits. `check` looks at all of this.
    """

    def __init__(self, is_behind: Callable[[Any], bool]) -> None:
        self._is_behind = is_behind
        self.state = READY
        self._waiting: deque[P] = deque()
        self._batch: list[P] = []
        self._blocked: dict[Hashable, deque[P]] = {}
        self._caught_up: dict[Hashable, None] = {}
        self._prefers_unblocked = False
        self._long_polls: dict[P, None] = {}
        self._deadlines: list[tuple[float, int, P]] = []
        self._parked_count = 0

    def note(self, event: Event) -> None:
        """Go to the next state."""
        self.state = TRANSITIONS[self.state][event]

    @property
    def can_take(self) -> bool:
        """Whether `take` is allowed and there may be a pull to answer."""
        return self.state is READY and bool(self._waiting or self._caught_up)

    @property
    def is_full(self) -> bool:
        """Whether no more pulls should come. Blocked pulls do not count: else a slow consumer would stop the others."""
        return len(self._waiting) >= PULLS_WAITING_MAX

    def add(self, pull: P) -> None:
        """Let a pull wait behind all others."""
        self._waiting.append(pull)

    def take(self) -> Batch[P]:
        """The next pulls to answer: the oldest ones, in turn with those of slow consumers that have caught up.

        A waiting pull of a slow consumer is blocked instead. `finish` or `end_read` must follow.
        """
        pulls = self._batch
        blocked: list[P] = []
        unblocked: list[P] = []
        free: Hashable = None
        while len(pulls) < PULLS_PER_BATCH_MAX:
            # A read may end after its first pages, so the two sides take turns in being first.
            self._prefers_unblocked = not self._prefers_unblocked
            pull = self._take_unblocked(unblocked) if self._prefers_unblocked and self._caught_up else None
            while pull is None and self._waiting:
                pull = self._waiting.popleft()
                consumer = pull.consumer
                # Nothing is sent while a batch is taken, so a consumer that was free stays so: ask once.
                if consumer is free:
                    break
                if consumer in self._blocked or self._is_behind(consumer):
                    # Also behind its own earlier pulls: a consumer gets its answers in order.
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
        return Batch(pulls, blocked, unblocked)

    def begin_read(self) -> None:
        """The batch is being read. Until `end_read` no other one can be taken."""
        assert self._batch, "nothing was taken"
        self.note(READ_BEGUN)

    def end_read(self, count: int) -> tuple[list[P], list[P]]:
        """The pages of the first `count` pulls of the batch have been read. See `finish`."""
        self.note(READ_ENDED)
        return self.finish(count)

    def finish(self, count: int) -> tuple[list[P], list[P]]:
        """End the batch: its first `count` pulls are to be answered now, and the others wait again, before all younger.

        Returns the pulls to answer, and those of the others that are blocked again. When closed, the others are gone.
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
        """Whether pulls of this consumer are blocked."""
        return consumer in self._blocked

    def unblock(self, consumer: Hashable) -> bool:
        """A consumer has taken answers. Whether its blocked pulls can be taken now."""
        if consumer not in self._blocked or self._is_behind(consumer):
            return False
        self._caught_up[consumer] = None
        return True

    def drop_blocked(self, consumer: Hashable) -> Sequence[P]:
        """The consumer's connection is gone, and nobody waits for these pulls any more."""
        self._caught_up.pop(consumer, None)
        return self._blocked.pop(consumer, ())

    def park(self, pull: P, now_s: float) -> bool:
        """Let a pull that found no message wait for one as a long poll; False where it must be answered now."""
        if pull.deadline_s <= now_s or len(self._long_polls) >= LONG_POLLS_MAX or self.state is CLOSED:
            return False
        self._parked_count += 1
        self._long_polls[pull] = None
        # The number decides between equal deadlines, so that pulls are never compared.
        heapq.heappush(self._deadlines, (pull.deadline_s, self._parked_count, pull))
        return True

    def unpark(self, pull: P) -> bool:
        """End a long poll before its time; False where it has ended already. The caller answers it, or nobody does."""
        if pull not in self._long_polls:
            return False
        del self._long_polls[pull]
        return True

    def wake(self) -> list[P]:
        """There are new messages: all long polls wait for their answers now, the oldest first. Returns them."""
        if not self._long_polls:
            return []
        woken = list(self._long_polls)
        self._long_polls.clear()
        self._deadlines.clear()
        self._waiting += woken
        return woken

    @property
    def next_deadline_s(self) -> float:
        """When to call `end_late` next; it may be too early. Infinite where no pull waits for a message."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def end_late(self, now_s: float) -> list[P]:
        """End the long polls whose deadline has passed; the caller answers them."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            pull = heapq.heappop(self._deadlines)[2]
            if self.unpark(pull):
                late.append(pull)
        return late

    def clear(self) -> tuple[list[P], list[P], list[P]]:
        """Take out all pulls that wait, are blocked, or are long polls, each kind in order."""
        taken = list(self._waiting), list(chain.from_iterable(self._blocked.values())), list(self._long_polls)
        for place in (self._waiting, self._blocked, self._caught_up, self._long_polls, self._deadlines):
            place.clear()
        return taken

    def check(self) -> None:
        """The invariant, for tests: to be called between turns."""
        assert bool(self._batch) == (self.state in (READING, READING_HELD)) or self.state is CLOSED
        assert self._caught_up.keys() <= self._blocked.keys()
        assert all(self._blocked.values())
        for consumer, blocked in self._blocked.items():
            assert {pull.consumer for pull in blocked} == {consumer}
        assert self._long_polls.keys() <= {pull for _, _, pull in self._deadlines}
        places = [*self._waiting, *self._batch, *chain.from_iterable(self._blocked.values()), *self._long_polls]
        assert len(places) == len(set(map(id, places)))
        if self.state is CLOSED:
            assert not any((self._waiting, self._blocked, self._long_polls))

    def _take_unblocked(self, unblocked: list[P]) -> P | None:
        """The oldest pull of a slow consumer that has caught up; such consumers take turns."""
        while self._caught_up:
            consumer = next(iter(self._caught_up))
            del self._caught_up[consumer]
            if self._is_behind(consumer):
                # It has been given answers since. Its connection tells again when they are taken.
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
