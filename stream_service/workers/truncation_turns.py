"""TruncationTurns: limits how many messages of all streams are deleted at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class TruncationTurns:
    """Begins the steps by which streams delete messages, in the order in which they ask.

    All steps under way share transactions, for which pushes wait. Invariant: together they delete at most
    `messages_max` messages, or there is only one.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._under_way = 0
        self._is_beginning = False
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def begin(self, messages: int, step: Callable[[], None]) -> None:
        """Calls `step` when it may begin: at once, or in a call of `end`. `step` must not raise. Call `end` after each
        step that has begun.

        messages: the most that the step deletes."""
        self._waiting.append((messages, step))
        self._go_on()

    def end(self, messages: int) -> None:
        """Ends a step that was begun with this number of messages."""
        self._under_way -= messages
        self._go_on()

    def _go_on(self) -> None:
        # A step that ends at once calls this method again; the loop below goes on with the next one.
        if self._is_beginning:
            return
        self._is_beginning = True
        try:
            while self._waiting and (
                not self._under_way or self._under_way + self._waiting[0][0] <= self._messages_max
            ):
                messages, step = self._waiting.popleft()
                self._under_way += messages
                step()
        finally:
            self._is_beginning = False
