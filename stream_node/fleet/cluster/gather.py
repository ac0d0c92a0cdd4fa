"""Gather: collects the answers of all members to one request."""

from __future__ import annotations

from collections.abc import Callable

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import NOTHING, Demand

WAIT_S = 5.0

OnDone = Callable[[list[bytes] | None], None]


class Gather(Worker):
    """Receives the answers to one request. It ends itself when all have come, or when the time is over."""

    def __init__(self, count: int, on_done: OnDone, end: Callable[[], None]) -> None:
        """count: the number of answers. on_done: called once with the payloads, or with None after WAIT_S."""
        self._count = count
        self._on_done = on_done
        self._end = end
        self._answers: list[bytes] = []

    def started(self) -> None:
        self.context.call_later(WAIT_S, lambda: self._finish(None))

    def demand(self, message: Message) -> Demand:
        return NOTHING

    def handle(self, message: Message) -> None:
        self._answers.append(message.payload)
        if len(self._answers) == self._count:
            self._finish(self._answers)

    def _finish(self, answers: list[bytes] | None) -> None:
        self._end()
        self._on_done(answers)
