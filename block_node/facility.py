"""The messaging facility: every plugin receives every event in the same order, through a bounded queue of its own.

Gating plugins (verification, persistence, publishing) lose no event: while one of them is behind, `full` is true, and
every source of items waits. A plugin that is not gating (a subscriber) is dropped, and told so, when it falls too far
behind. Notifications are always accepted. Their number is bounded, because each follows from items that were accepted;
and a plugin that waited for room in a queue that it must empty itself would wait forever.

Every call runs to its end in the trio thread. The facility knows no block and stores nothing on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar

import msgspec
import structlog

from block_node.events import ITEM_EVENTS, Event, ItemEvent, NodeFailed, Notification, event_bytes
from ockam.worker import Worker

GATING_EVENTS_MAX = 1_024
GATING_BYTES_MAX = 16 * 1024 * 1024
"""The facility is full while the queue of a gating plugin has this many events or bytes."""
LOOSE_EVENTS_MAX = 8_192
LOOSE_BYTES_MAX = 64 * 1024 * 1024
"""A plugin that is not gating is dropped when its queue has more events or bytes than this."""

logger = structlog.get_logger(__name__)


class Plugin(Worker):
    """A worker that receives items and notifications. Override the handlers that matter; no handler may block.

    A plugin that cannot take events for a while calls `self.inlet.pause()`, and later `self.inlet.resume()`. Meanwhile
    it receives nothing and its queue fills; if the queue is full, the sources wait, or a plugin that is not `gating` is
    dropped. An event that a handler publishes through `self.facility.publish` is delivered after the current event, to
    all plugins including this one.

    A handler that raises crashes the worker, and the node makes a new one with an empty queue. The crash of a gating
    plugin ends every stream (`NodeFailed`). The new plugin may see the rest of a block whose beginning it did not see,
    and ignores it. When it starts, it must find out what was notified while it was away.

    name: the name of the plugin in logs and statistics. gating: whether sources wait for this plugin.
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
        """Called once when a plugin that is not gating was dropped because it was too far behind. Its inlet is
        detached, so no more events are delivered."""


class InletStatistics(msgspec.Struct, frozen=True):
    """The present state of one plugin's queue. delivered: the number of events since the plugin was attached."""

    name: str
    gating: bool
    paused: bool
    events: int
    size_bytes: int
    delivered: int


class FacilityStatistics(msgspec.Struct, frozen=True):
    """The statistics of the facility. published: the number of events since the start. dropped: the number of plugins
    that were too slow. failures: the number of `NodeFailed` events."""

    published: int
    dropped: int
    failures: int
    inlets: list[InletStatistics]


class Inlet:
    """One plugin's connection to the facility: its queue of events, and whether it is paused.

    Invariant: `_size_bytes` is the sum of the sizes in `_events`, each computed by `event_bytes`.
    """

    def __init__(self, facility: Facility, plugin: Plugin) -> None:
        self._facility = facility
        self._plugin = plugin
        self._events: deque[tuple[Event, int]] = deque()
        self._size_bytes = 0
        self._delivered = 0
        self._paused = False
        self._attached = True
        self._deliver = plugin.context.guard(self._deliver_one)
        self._lag = plugin.context.guard(plugin.handle_lag)

    @property
    def gating(self) -> bool:
        return self._plugin.gating

    @property
    def name(self) -> str:
        return self._plugin.name

    @property
    def full(self) -> bool:
        """Whether this gating plugin is so far behind that sources must wait."""
        return self.gating and (len(self._events) >= GATING_EVENTS_MAX or self._size_bytes >= GATING_BYTES_MAX)

    def pause(self) -> None:
        """Stops the delivery of events until `resume` is called. Safe to repeat."""
        self._paused = True

    def resume(self) -> None:
        """Continues the delivery of events. Safe to repeat."""
        if self._paused:
            self._paused = False
            self._facility.run()

    def detach(self) -> None:
        """Ends the delivery of events and forgets the queue. Safe to repeat."""
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
        """Detaches a plugin that is not gating, and tells the plugin that it was too slow."""
        self.detach()
        self._lag()

    def run(self) -> bool:
        """Delivers the events in the queue. Returns whether any event was delivered."""
        delivered = self._delivered
        while self._events and not self._paused and self._attached:
            self._deliver()
        return self._delivered != delivered

    def statistics(self) -> InletStatistics:
        return InletStatistics(
            self.name, self.gating, self._paused, len(self._events), self._size_bytes, self._delivered
        )

    def _deliver_one(self) -> None:
        event, size_bytes = self._events.popleft()
        self._size_bytes -= size_bytes
        self._delivered += 1
        if isinstance(event, ITEM_EVENTS):
            self._plugin.handle_items(event)
        else:
            self._plugin.handle_notification(event)


class Facility:
    """Takes events from any part of the node and delivers them to the attached plugins.

    Invariant: `_missing` holds the names of those gating plugins that were attached and are not attached now; while
    there is any, the facility is full.
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
        """Whether sources must wait: they bring no more items until a function passed to `when_room` is called."""
        return bool(self._missing) or any(inlet.full for inlet in self._inlets)

    @property
    def missing(self) -> frozenset[str]:
        """The names of the gating plugins that failed and are not attached again."""
        return frozenset(self._missing)

    def when_room(self, function: Callable[[], None]) -> None:
        """Calls a function once, as soon as the facility is not full."""
        self._waiting.append(function)
        if not self._running:
            self.run()

    def attach(self, plugin: Plugin) -> Inlet:
        """Attaches a plugin, whose `context` must be set: from now on it receives every event."""
        inlet = Inlet(self, plugin)
        self._inlets.append(inlet)
        self._missing.discard(inlet.name)
        return inlet

    def detached(self, inlet: Inlet) -> None:
        """Removes a detached inlet. If its plugin is gating, the node fails: nothing can continue without that
        plugin."""
        self._inlets.remove(inlet)
        if inlet.gating and not self._closed:
            self._missing.add(inlet.name)
            logger.error("block_plugin_lost", plugin=inlet.name)
            self.publish(NodeFailed(f"the {inlet.name} plugin failed; it is restarted"))

    def publish(self, event: Event) -> None:
        """Delivers an event to every plugin, after all events that were published before."""
        self._published += 1
        self._failures += isinstance(event, NodeFailed)
        size_bytes = event_bytes(event)
        for inlet in self._inlets:
            inlet.put(event, size_bytes)
        self.run()

    def run(self) -> None:
        """Delivers all events that can be delivered. A call from within a delivery returns at once; the outer call goes
        on."""
        if self._running:
            return
        self._running = True
        try:
            while self._deliver() or self._tell_room():
                pass
        finally:
            self._running = False

    def close(self) -> None:
        """Notes that the node is stopping: from now on a plugin may detach without causing a failure."""
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

    def _tell_room(self) -> bool:
        if not self._waiting or self.full:
            return False
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()
        return True
