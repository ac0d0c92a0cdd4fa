"""The pulls of peers that have not taken their earlier answers: kept by peer, in order, until the answers are taken.

Nothing looks for peers that have caught up: their connections tell (`ockam.memory.Holdings.watch`). It reads nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ockam.message import Origin
from stream_service.workers.parked import size_in_memory

if TYPE_CHECKING:
    from stream_service.workers.pulls import Pull

BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""A peer with more unsent answers than this gets no further ones until it has taken some."""


class HeldPulls:
    """Pulls of peers that are behind, by peer. They are counted among what each connection makes the node hold.

    on_ready: called when a peer with pulls here has caught up; `take` gives them from then on.
    Invariant: a peer is in `_pulls` exactly while pulls of it are here and its connection is watched. Those of these
    peers that have caught up are in `_ready` too. Later pulls of a peer in `_pulls` belong behind those that are here.
    """

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        self._pulls: dict[Origin, deque[Pull]] = {}
        self._ready: dict[Origin, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._pulls.values()))

    @property
    def is_ready(self) -> bool:
        """Whether `take` may have a pull."""
        return bool(self._ready)

    def holds(self, pull: Pull) -> bool:
        """Whether this pull must wait here: its peer is behind, or earlier pulls of it wait here."""
        origin = pull.message.origin
        return origin in self._pulls or origin.is_behind(BACKLOG_BYTES_MAX)

    def hold(self, pull: Pull) -> None:
        """Keep a pull, behind the others of its peer; it is dropped where the peer's connection has ended."""
        if pull.message.origin.holdings.has_ended:
            return
        self._waiting_of(pull.message.origin).append(pull)
        self._count(pull, 1)

    def put_back(self, pull: Pull) -> bool:
        """Keep a pull that was taken, before the others of its peer; False where there are none."""
        waiting = self._pulls.get(pull.message.origin)
        if waiting is None:
            return False
        waiting.appendleft(pull)
        self._count(pull, 1)
        return True

    def take(self) -> Pull | None:
        """The oldest pull of a peer that has caught up; such peers take turns."""
        while self._ready:
            origin = next(iter(self._ready))
            del self._ready[origin]
            if origin.is_behind(BACKLOG_BYTES_MAX):
                # It has been given answers since; its connection tells again when they are taken.
                continue
            waiting = self._pulls[origin]
            pull = waiting.popleft()
            if waiting:
                self._ready[origin] = None
            else:
                self._forget(origin)
            self._count(pull, -1)
            return pull
        return None

    def take_all(self) -> list[Pull]:
        """All pulls, which wait here no longer."""
        pulls = [pull for waiting in self._pulls.values() for pull in waiting]
        for origin in list(self._pulls):
            self._drop(origin)
        return pulls

    def _waiting_of(self, origin: Origin) -> deque[Pull]:
        waiting = self._pulls.get(origin)
        if waiting is None:
            waiting = self._pulls[origin] = deque()
            origin.holdings.watch(self, partial(self._told, origin))
        return waiting

    def _told(self, origin: Origin, gone: bool) -> None:
        """The peer has taken answers, or its connection has ended, and nobody waits for its pulls any more."""
        if gone:
            self._drop(origin)
        elif not origin.is_behind(BACKLOG_BYTES_MAX):
            self._ready[origin] = None
            self._on_ready()

    def _drop(self, origin: Origin) -> None:
        waiting = self._pulls[origin]
        self._forget(origin)
        for pull in waiting:
            self._count(pull, -1)

    def _forget(self, origin: Origin) -> None:
        del self._pulls[origin]
        self._ready.pop(origin, None)
        origin.holdings.unwatch(self)

    def _count(self, pull: Pull, sign: int) -> None:
        # Last in each method that adds, since the memory may need room and end the connection, and its pulls with it.
        pull.message.origin.holdings.note_waiting(sign * size_in_memory(pull))
