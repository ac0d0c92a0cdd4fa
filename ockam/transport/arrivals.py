"""ReadyConnections: reads the sockets of many connections in one task, and in one batch of the node. It routes nothing.

Otherwise, a thousand clients with one push each need a thousand tasks that are woken one by one, a thousand batches,
and a commit for every few of them."""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

from ockam.actors.node import Node
from ockam.actors.turns import Share, TurnQueue, Turns

ARRIVAL_BYTES_MAX = 4096
"""A connection is read here only while its reads are smaller than this. A larger read is a step by itself (`Turns`)."""
ARRIVALS_MAX = 64
"""The most reads of one turn of the event loop. With the work of their messages they take some 6 ms."""
HAS_EPOLL = hasattr(select, "epoll")
"""Whether the system has epoll, as Linux does. Elsewhere, each connection reads its own socket."""
SMALL_READS_MIN = 4
"""The number of small reads in a row after which a connection is read here. Each change costs some system calls."""


class ReadyConnection:
    """A connection that waits for bytes of its peer. take: see `ReadyConnections.wait`.

    Invariant: `ended` is set when the connection's own task must go on. From then on `take` is not called."""

    __slots__ = ("_take", "ended", "error", "is_queued", "share")

    def __init__(self, share: Share, take: Callable[[], bool]) -> None:
        self.share, self._take = share, take
        self.is_queued = False
        self.ended = trio.Event()
        self.error: Exception | None = None

    def go_on(self) -> None:
        """Takes the bytes, now that it is the turn of this connection."""
        self.is_queued = False
        # A mistake in our code ends this connection, and not all connections.
        try:
            if self.ended.is_set() or self._take():
                return
        except Exception as error:
            self.error = error
        self.ended.set()


class ReadyConnections:
    """The connections that one task reads, at most ARRIVALS_MAX of them in each turn of the event loop.

    Invariant: while connections wait (`_arrivals`), the task runs, and `_poll` watches their sockets. No connection is
    in `_queue` twice."""

    def __init__(self, node: Node, nursery: trio.Nursery, turns: Turns) -> None:
        self._node, self._nursery, self._turns = node, nursery, turns
        if HAS_EPOLL:
            self._poll = select.epoll()
        self._arrivals: dict[int, ReadyConnection] = {}
        self._queue = TurnQueue()
        self._scope = trio.CancelScope()

    async def wait(self, descriptor: int, share: Share, take: Callable[[], bool]) -> None:
        """Calls `take`, in a batch of the node, whenever the socket has bytes, until it returns False or raises."""
        arrival = ReadyConnection(share, take)
        if not self._arrivals:
            self._scope = trio.CancelScope()
            self._nursery.start_soon(self._run, self._scope)
        self._arrivals[descriptor] = arrival
        self._poll.register(descriptor, select.EPOLLIN)
        try:
            await arrival.ended.wait()
        finally:
            arrival.ended.set()
            del self._arrivals[descriptor]
            self._poll.unregister(descriptor)
            if not self._arrivals:
                self._scope.cancel()
        if arrival.error is not None:
            raise arrival.error

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            # The last arrival may end after this task was woken, and another task may have followed this one.
            while not scope.cancel_called:
                await trio.lowlevel.wait_readable(self._poll.fileno())
                if not scope.cancel_called:
                    self._take()

    def _take(self) -> None:
        began_s = trio.current_time()
        # The kernel reports again each socket that was left over from the last turn. It keeps its place in the queue.
        for descriptor, _ in self._poll.poll(0, len(self._arrivals)):
            arrival = self._arrivals[descriptor]
            if not arrival.is_queued:
                arrival.is_queued = True
                # As in `Turns`, the peers of different hosts alternate.
                self._queue.add(arrival.share, arrival.go_on)
        taken: list[Share] = []
        # A worker gets the messages of all these connections as one run, and all streams share one commit.
        with self._node.batch():
            while self._queue and len(taken) < ARRIVALS_MAX:
                taken.append(self._queue.let_one_in())
        self._turns.note_together(taken, began_s)
