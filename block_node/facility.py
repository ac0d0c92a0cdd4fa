"""The messaging facility: delivers every event to every plugin, in the same order, through a bounded queue for each.

Gating plugins (verification, persistence, publishing) must not lose events: while the queue of a gating plugin is full,
every source of items waits. Any other plugin is detached and notified if its queue grows too long. Notifications are
accepted even if a queue is full: otherwise a plugin could wait for space that only it can make. Each notification
results from accepted items, so the number of notifications is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar

import msgspec
import structlog

from block_node.events import ITEM_EVENTS, Event, ItemEvent, NodeFailure, Notification, event_bytes
from ockam.actors.worker import Worker

GATING_EVENTS_MAX = 1_024
GATING_BYTES_MAX = 4 * 1024 * 1024
"""The facility is full if the queue of a gating plugin has this many bytes, or `GATING_EVENTS_MAX` events."""
LOOSE_EVENTS_MAX = 8_192
LOOSE_BYTES_MAX = 64 * 1024 * 1024
"""A plugin that is not gating is detached above this many bytes, or `LOOSE_EVENTS_MAX` events, in its queue."""

logger = structlog.get_logger(__name__)


class Plugin(Worker):
    """A worker that receives events. A subclass overrides the handlers that it needs. A handler must not block.

    A plugin that cannot handle events for a while calls `self.inlet.pause()`, and later `self.inlet.resume()`. An event
    that a handler publishes is delivered after the current one, to all plugins including this one.

    If a handler raises, the worker crashes, and is started again with an empty queue. If it is gating, the crash also
    publishes `NodeFailure`. A plugin ignores the rest of a block whose beginning it did not receive. When it starts, it
    must find out the results of events that it missed.
    """

    name: ClassVar[str] = "plugin"
    gating: ClassVar[bool] = True

    def __init__(self, facility: Facility) -> None:
        self.facility = facility
        self.inlet: Inlet

    def started(self) -> None:
        self.inlet = self.facility.attach(self)
        # Sources may be waiting for this plugin. They continue after its start is complete.
        self.context.call_later(0, self.facility.run)

    def stopped(self) -> None:
        self.inlet.detach()

    def handle_items(self, event: ItemEvent) -> None:
        """Handles the next event of the block that is being received."""

    def handle_notification(self, notification: Notification) -> None:
        """Handles the next notification."""

    def handle_lag(self) -> None:
        """Called after this plugin was detached because its queue grew too long."""


class InletStatistics(msgspec.Struct, frozen=True):
    name: str
    gating: bool
    paused: bool
    events: int
    size_bytes: int
    delivered: int


class FacilityStatistics(msgspec.Struct, frozen=True):
    """The counters since the node started. `dropped` plugins were detached because their queue grew too long."""

    published: int
    dropped: int
    failures: int
    inlets: list[InletStatistics]


class Inlet:
    """The queue between the facility and one plugin.

    Invariant: `_size_bytes` is the sum of the sizes in `_events`, each computed by `event_bytes`.
    """

    def __init__(self, facility: Facility, plugin: Plugin) -> None:
        self._facility = facility
        self._plugin = plugin
        self.name, self.gating = plugin.name, plugin.gating
        self._events: deque[tuple[Event, int]] = deque()
        self._size_bytes = 0
        self.delivered = 0
        self._paused = False
        self._attached = True
        self._deliver = plugin.context.guard(self._deliver_one)
        self._lag = plugin.context.guard(plugin.handle_lag)

    @property
    def full(self) -> bool:
        return self.gating and (len(self._events) >= GATING_EVENTS_MAX or self._size_bytes >= GATING_BYTES_MAX)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._facility.run()

    def detach(self) -> None:
        if self._attached:
            self._attached = False
            self._events.clear()
            self._size_bytes = 0
            self._facility.detached(self)

    def put(self, event: Event, size_bytes: int) -> None:
        self._events.append((event, size_bytes))
        self._size_bytes += size_bytes

    def overflows(self) -> bool:
        return not self.gating and (len(self._events) > LOOSE_EVENTS_MAX or self._size_bytes > LOOSE_BYTES_MAX)

    def drop(self) -> None:
        self.detach()
        self._lag()

    def run(self) -> bool:
        delivered = self.delivered
        while self._events and not self._paused and self._attached:
            self._deliver()
        return self.delivered != delivered

    def statistics(self) -> InletStatistics:
        return InletStatistics(
            self.name, self.gating, self._paused, len(self._events), self._size_bytes, self.delivered
        )

    def _deliver_one(self) -> None:
        event, size_bytes = self._events.popleft()
        self._size_bytes -= size_bytes
        self.delivered += 1
        if isinstance(event, ITEM_EVENTS):
            self._plugin.handle_items(event)
        else:
            self._plugin.handle_notification(event)


class Facility:
    """Receives events from all parts of the node and delivers them to the attached plugins.

    Invariant: `_missing` has the names of gating plugins that were attached and are not attached now. While it is not
    empty, the facility is full.
    """

    def __init__(self) -> None:
        self._inlets: list[Inlet] = []
        self._missing: set[str] = set()
        self._running = False
        self._closed = False
        self._waiting: list[Callable[[], None]] = []
        self._published = self._dropped = self._failures = 0

    @property
    def full(self) -> bool:
        """Whether sources of items must wait, until the functions passed to `when_room` are called."""
        return bool(self._missing) or any(inlet.full for inlet in self._inlets)

    @property
    def full_at(self) -> int | None:
        """The number of events that full plugins took. While it stays the same, they hang. None: no plugin is full."""
        return sum(inlet.delivered for inlet in self._inlets if inlet.full) if self.full else None

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(self._missing)

    def when_room(self, function: Callable[[], None]) -> None:
        """Calls a function once, as soon as the facility is not full."""
        self._waiting.append(function)
        if not self._running:
            self.run()

    def attach(self, plugin: Plugin) -> Inlet:
        """Gives a plugin its queue. The `context` of the plugin must be set."""
        inlet = Inlet(self, plugin)
        self._inlets.append(inlet)
        self._missing.discard(inlet.name)
        return inlet

    def detached(self, inlet: Inlet) -> None:
        """Removes the queue of a plugin. The node fails if the plugin is gating."""
        self._inlets.remove(inlet)
        if inlet.gating and not self._closed:
            self._missing.add(inlet.name)
            logger.error("block_plugin_lost", plugin=inlet.name)
            self.publish(NodeFailure(f"the {inlet.name} plugin failed; it is restarted"))

    def publish(self, event: Event) -> None:
        """Delivers an event to every plugin, after all events that were published earlier."""
        self._published += 1
        self._failures += isinstance(event, NodeFailure)
        size_bytes = event_bytes(event)
        for inlet in self._inlets:
            inlet.put(event, size_bytes)
        self.run()

    def run(self) -> None:
        """Delivers all events that can be delivered now. A call from within a handler returns at once."""
        if self._running:
            return
        self._running = True
        # A delivery can make room, and a source that finds room can publish. The loop runs until neither happens.
        try:
            while self._deliver() or self._report_room():
                pass
        finally:
            self._running = False

    def close(self) -> None:
        """Records that the node is stopping: from now on a gating plugin can detach without a `NodeFailure`."""
        self._closed = True

    def statistics(self) -> FacilityStatistics:
        inlets = [inlet.statistics() for inlet in self._inlets]
        return FacilityStatistics(self._published, self._dropped, self._failures, inlets)

    def _deliver(self) -> bool:
        delivered = False
        for inlet in list(self._inlets):
            delivered = inlet.run() or delivered
            if inlet.overflows():
                self._dropped += 1
                logger.warning("slow_block_plugin_dropped", plugin=inlet.name)
                inlet.drop()
        return delivered

    def _report_room(self) -> bool:
        if not self._waiting or self.full:
            return False
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()
        return True
