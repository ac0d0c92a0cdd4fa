"""StreamServices: the shared parts of a node, as the workers of streams see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.identity.rules.rights import Right
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import AskingMirror
from stream_service.workers.clock import Clock
from stream_service.workers.tail_machine import Tails
from stream_storage.contract import Session
from stream_storage.runner import Runner

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing


class StreamServices:
    """The parts of a node that all its streams share. tracing: makes the spans of pushes; None: the node does not
    trace."""

    def __init__(
        self, node: Node, storage: Runner, limits: StreamLimits, clock: Clock, tracing: Tracing | None
    ) -> None:
        self.counters = StreamCounters()
        self.tails = Tails(limits.tails_bytes_max, limits.tail_bytes_max)
        self.truncation_turns = TruncationTurns(limits.truncating_messages)
        self.node = node
        self.storage = storage
        self.limits = limits
        self.clock = clock
        self.tracing = tracing
        # called when a mirror asks a stream for messages, with the name and partition of the stream
        self.mirror_seen: Callable[[tuple[str, int], Origin, AskingMirror], None] = lambda *seen: None
        # called with the mirror row, or None, of a stream that changed its role or was deleted; None: no mirrors
        self.role_changed: Callable[[tuple[str, int], MirrorRow | None], None] | None = None
        # passes the pushes to a mirror on to its source, and returns all other messages; None: mirrors refuse pushes
        self.pass_on: Callable[[tuple[str, int], Sequence[Message]], Sequence[Message]] | None = None
        self.holds: dict[tuple[str, int], str] = {}  # the streams that store nothing at present, each with the reason
        # deletes the positions of all consumers in a partition, in the transaction that deletes it
        self.forget_positions: Callable[[Session, str, int], None] = lambda session, name, partition: None
        # lowers positions when a mirror becomes a primary, in that transaction; `index_service.storage.lower_positions`
        self.lower_positions: Callable[..., None] = lambda session, name, partition, index, now_us, *, renews_all: None
        self._now_us: int | None = None

    def now_us(self) -> int:
        """Returns the trusted time, in microseconds since 1970. It is read once a batch, because a batch can have an
        append of each of ten thousand streams."""
        now_us = self._now_us
        if now_us is None:
            now_us = self._now_us = self.clock.time_us()
            # Without a batch, this forgets the time at once.
            self.node.at_batch_end(self._forget_time)
        return now_us

    def _forget_time(self) -> None:
        self._now_us = None

    @property
    def has_rules(self) -> bool:
        """Whether the node has access rules."""
        return self.node.gate is not None

    def may_follow(self, origin: Origin, name: str) -> bool:
        """Whether a sender may make the stream of this name follow a stream of some other node."""
        gate = self.node.gate
        return gate is None or (
            gate.holds(origin, Right.CREATE, name) and gate.find_next(origin, Right.FORWARD, "") is not None
        )


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
