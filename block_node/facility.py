"""The messaging facility: every plugin gets every event, in one order, through a bounded queue of its own.

Gating plugins (verification, persistence, publishing, backfill) lose nothing: while one of them is behind, `full` is
true and whoever brings new items waits. A plugin that is not gating (a subscriber) and falls behind is dropped and
told. Notifications are always taken: they follow from items that were let in, which bounds them, and a plugin that had
to wait for room in a queue that it must empty itself would wait for ever.

Everything is a plain call in the trio thread. It knows no block and keeps nothing on disk.
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
"""With as much before one gating plugin the facility is full."""
LOOSE_EVENTS_MAX = 8_192
LOOSE_BYTES_MAX = 64 * 1024 * 1024
"""With more before a plugin that is not gating, it is dropped."""

logger = structlog.get_logger(__name__)


class Plugin(Worker):
    """A worker that gets items and notifications. Override the handlers that matter; neither may block.

    A plugin that cannot take more for a while calls `self.inlet.pause()`, and `self.inlet.resume()` later: it is
    handed nothing between, its queue fills, and the sources wait (or, where it is not `gating`, it is dropped). What a
    handler publishes through `self.facility.publish` is delivered after what is being delivered, to everybody, itself
    too. A handler that raises crashes the worker: the node makes it anew, with an empty queue. The crash of a gating
    plugin ends every stream (`NodeFailed`); the new plugin may see the rest of a block of which it did not see the
    beginning, and ignores it. What was notified while it was away it finds out when it starts.

    name: for people and statistics. gating: whether sources wait for this plugin.
    """

    name: ClassVar[str] = "plugin"
    gating: ClassVar[bool] = True

    def __init__(self, facility: Facility) -> None:
        self.facility = facility
        self.inlet: Inlet

    def started(self) -> None:
        self.inlet = self.facility.attach(self)
        # Sources may have waited for this plugin; they go on when it has started altogether.
        self.context.call_later(0, self.facility.run)

    def stopped(self) -> None:
        self.inlet.detach()

    def handle_items(self, event: ItemEvent) -> None:
        """The next event of the block that is being received."""

    def handle_notification(self, notification: Notification) -> None:
        """The next notification."""

    def handle_lag(self) -> None:
        """Not gating, and too far behind: nothing more is delivered. Called once, after which the inlet is detached."""


class InletStatistics(msgspec.Struct, frozen=True):
    """One plugin's queue now. delivered: events since it was attached."""

    name: str
    gating: bool
    paused: bool
    events: int
    size_bytes: int
    delivered: int


class FacilityStatistics(msgspec.Struct, frozen=True):
    """published: events since the start. dropped: plugins that were too slow. failures: `NodeFailed` events."""

    published: int
    dropped: int
    failures: int
    inlets: list[InletStatistics]


class Inlet:
    """One plugin's place in the facility: its queue, and whether it wants more.

    Invariant: `_size_bytes` is the sum of the sizes in `_events`, which are those of `event_bytes`.
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
        """A gating plugin is behind, so that sources must wait."""
        return self.gating and (len(self._events) >= GATING_EVENTS_MAX or self._size_bytes >= GATING_BYTES_MAX)

    def pause(self) -> None:
        """Hand over no more events until `resume`. Safe to repeat."""
        self._paused = True

    def resume(self) -> None:
        """Safe to repeat."""
        if self._paused:
            self._paused = False
            self._facility.run()

    def detach(self) -> None:
        """Deliver no more; what waits is forgotten. Safe to repeat."""
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
        """Tell a plugin that is not gating that it was too slow."""
        self.detach()
        self._lag()

    def run(self) -> bool:
        """Deliver what waits; whether there was anything."""
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
    """Takes events from anybody on the node and delivers them to the attached plugins.

    Invariant: `_missing` has the names of the gating plugins that were attached and are not; while it has any, the
    facility is full.
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
        """Sources wait: bring no more items until a function given to `when_room` is called."""
        return bool(self._missing) or any(inlet.full for inlet in self._inlets)

    @property
    def missing(self) -> frozenset[str]:
        """The gating plugins that have failed and are not there again."""
        return frozenset(self._missing)

    def when_room(self, function: Callable[[], None]) -> None:
        """Call once when the facility is not full any more; soon, where it is not full now."""
        self._waiting.append(function)
        if not self._running:
            self.run()

    def attach(self, plugin: Plugin) -> Inlet:
        """From now on every event goes to this plugin too, whose `context` is set."""
        inlet = Inlet(self, plugin)
        self._inlets.append(inlet)
        self._missing.discard(inlet.name)
        return inlet

    def detached(self, inlet: Inlet) -> None:
        """The inlet is not attached any more. Without a gating plugin nothing can go on."""
        self._inlets.remove(inlet)
        if inlet.gating and not self._closed:
            self._missing.add(inlet.name)
            logger.error("block_plugin_lost", plugin=inlet.name)
            self.publish(NodeFailed(f"the {inlet.name} plugin failed; it is restarted"))

    def publish(self, event: Event) -> None:
        """Deliver an event to every plugin, after all that was published before it."""
        self._published += 1
        self._failures += isinstance(event, NodeFailed)
        size_bytes = event_bytes(event)
        for inlet in self._inlets:
            inlet.put(event, size_bytes)
        self.run()

    def run(self) -> None:
        """Deliver what can be delivered. A call from within a delivery leaves the work to that one."""
        if self._running:
            return
        self._running = True
        try:
            while self._deliver() or self._tell_room():
                pass
        finally:
            self._running = False

    def close(self) -> None:
        """The node stops: plugins may leave without that being a failure."""
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
