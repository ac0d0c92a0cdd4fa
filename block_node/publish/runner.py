"""Carries out the effects of the publish machine: answers to publishers, events for the plugins, log lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from block_node.events import CatchUpStalled, ItemsReceived
from block_node.facility import Facility
from block_node.protocol import PublishResponse, StreamEnded
from block_node.publish.effects import Effect, EndSession, LogLine, SendResponse
from block_node.publish.limits import PublishLimits
from block_node.publish.mending import Mending
from block_node.publish.publish_machine import PublishMachine
from block_node.publish.session_machine import PublisherState

logger = structlog.get_logger(__name__)


class RunnerSession(Protocol):
    publisher: PublisherState

    @property
    def reachable(self) -> bool: ...

    def respond(self, response: PublishResponse) -> None: ...

    def close(self, ended: StreamEnded | None) -> None: ...

    def leave(self) -> None: ...

    def admit(self) -> None: ...


class PublishRunner:
    """Connects the publish machine with the sessions, the clock and the facility. After every change of the machine,
    the caller calls `perform`. `call_later` is that of the service's worker. If that worker fails, its scheduled calls
    are lost, and the next tick of the new worker makes up for them.

    unread_bytes: the total size of the requests that sessions have not handed on completely."""

    def __init__(
        self,
        machine: PublishMachine,
        facility: Facility,
        limits: PublishLimits,
        now_s: Callable[[], float],
        mending: Mending,
    ) -> None:
        self.machine = machine
        self.mending = mending
        self.limits = limits
        self.now_s = now_s
        self.call_later: Callable[[float, Callable[[], None]], None] = lambda delay_s, function: None
        self._facility = facility
        self._sessions: dict[int, RunnerSession] = {}
        self._performing = self._waits_for_room = self._is_resting = False
        self._forwarded_items = 0
        self.unread_bytes = 0

    def sessions(self) -> list[RunnerSession]:
        return list(self._sessions.values())

    def join(self, session: RunnerSession) -> None:
        self._sessions[session.publisher.publisher_id] = session
        self.machine.join(session.publisher)
        self.perform()

    def may_read(self, publisher: PublisherState) -> bool:
        """Whether to continue reading from this publisher. If not, the session stops until `admit` is called."""
        return self.machine.may_read(publisher, self._has_room)

    def may_begin(self, publisher: PublisherState) -> bool:
        """Whether to take a request, perhaps a large one, from this publisher: not while `unread_bytes` has reached its
        limit, except for the block that all others wait for."""
        blocks = self.machine.blocks
        has_place = self.unread_bytes < self.limits.queued_bytes_max or blocks.has_gap
        return (has_place or publisher.session.block_number == blocks.next_to_verify) and self.may_read(publisher)

    def may_go_on(self, publisher: PublisherState) -> bool:
        """Whether to hand on more of a request that was handed on in part. While the plugins are full, its other items
        stay in the request, so that they are in memory only once."""
        if self._facility.full:
            self._wait_for_room()
            return False
        return self.may_read(publisher)

    def perform(self) -> None:
        """Carries out all effects, forwards items to the plugins, and lets sessions read again. A plugin can answer an
        effect at once with another change, which calls `perform` again. The inner call does nothing, and the outer call
        carries out the new effects. So all effects happen in the order in which the machine listed them."""
        if self._performing:
            return
        machine = self.machine
        self._performing = True
        self._forwarded_items = 0
        try:
            while True:
                # Effects are carried out before forwarding: an effect may drop a block whose items would otherwise be
                # forwarded.
                if machine.effects:
                    self._carry_out(machine.effects.popleft())
                elif machine.forward_due:
                    self._forward()
                else:
                    break
        finally:
            self._performing = False
        # Sessions are admitted last, because only now the free room is known.
        if machine.admit_due:
            machine.admit_due = False
            for session in self.sessions():
                if session.publisher.is_held and self.may_read(session.publisher):
                    session.admit()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SendResponse):
            session = self._sessions.get(effect.publisher_id)
            if session is not None:
                session.respond(effect.response)
        elif isinstance(effect, EndSession):
            session = self._sessions.pop(effect.publisher_id, None)
            if session is not None:
                session.close(effect.ended)
        elif isinstance(effect, LogLine):
            (logger.warning if effect.is_warning else logger.info)(effect.event, **effect.fields)
        else:
            if isinstance(effect, CatchUpStalled):
                logger.warning("block_catch_up_stalled", target=effect.target_block, last_block=effect.last_block)
            self._facility.publish(effect)

    def _forward(self) -> None:
        """Publishes one event with items, unless the plugins are full or other workers of the node must run first."""
        machine, limit = self.machine, self.limits.slice_items_max
        machine.forward_due = False
        if self._forwarded_items >= limit:
            return
        # Other workers have run since the last slice, so the pause is over, even without more items to forward.
        self._is_resting = False
        block = machine.blocks.find_to_forward()
        if block is None:
            return
        if self._facility.full:
            self._wait_for_room()
            return
        event = machine.blocks.forward(block, self.now_s())
        machine.forward_due = True
        if isinstance(event, ItemsReceived):
            self._forwarded_items += len(event.items)
        self._facility.publish(event)
        if self._forwarded_items >= limit:
            # The remaining items are forwarded after other workers have run. Otherwise one large block would stop the
            # whole node.
            self._is_resting = True
            self.call_later(0, self._go_on)

    def _wait_for_room(self) -> None:
        # The function is registered once; the facility keeps the function until the plugins have room.
        if not self._waits_for_room:
            self._waits_for_room = True
            self._facility.when_room(self._room)

    def _room(self) -> None:
        self._waits_for_room = False
        self.machine.forward_due = self.machine.admit_due = True
        self.perform()

    def _go_on(self) -> None:
        self.machine.go_on(self.now_s())
        self.perform()

    def _has_room(self) -> bool:
        return not self._facility.full and not self._is_resting
