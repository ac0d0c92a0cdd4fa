"""The service `block_subscribe`: starts a worker for each subscription, and passes events on to all subscriptions.

`block_node.read.subscription` decides what a subscription sends. The service is not gating: subscribers read stored
blocks at their own speed, so none can slow down a publisher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import msgspec
import structlog
import trio

from block_node.events import (
    BlockBegun,
    BlockDropped,
    ItemEvent,
    NodeFailure,
    NodeStopping,
    Notification,
    PersistedNotification,
    PublisherStatus,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.persist.store import ChainStore
from block_node.protocol_reading import SUBSCRIBE, Subscribe, SubscribeStatus, SubscriptionEnded, opening_of
from block_node.read.subscription import SubscribeSession
from block_node.read.subscription_plan import PlanRefused, SubscribeLimits, plan_subscription
from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError, error_payload
from ockam.quotas.usage import Usage

SESSION_PREFIX = "BS_"

logger = structlog.get_logger(__name__)


class SubscribeStatistics(msgspec.Struct, frozen=True):
    """The statistics of subscriptions since the start of the service. ended: by status name, with refused ones."""

    sessions: int
    begun: int
    ended: dict[str, int]


class SubscribeService(Plugin):
    """The plugin that answers at `block_subscribe`.

    Invariant: `_sessions` has the registered workers of subscriptions, each with the usage of the identity for which it
    counts. `_under_way` has the blocks whose items have begun to arrive, and which are neither stored nor dropped yet.
    """

    name: ClassVar[str] = "subscribe"
    gating: ClassVar[bool] = False

    def __init__(
        self,
        facility: Facility,
        node: Node,
        store: ChainStore,
        *,
        new_id: Callable[[], str],
        limits: SubscribeLimits | None = None,
        now_s: Callable[[], float] = trio.current_time,
    ) -> None:
        super().__init__(facility)
        self._node = node
        self.store = store
        self.now_s = now_s
        self._new_id = new_id
        self.limits = limits if limits is not None else SubscribeLimits()
        self._sessions: dict[SubscribeSession, Usage] = {}
        self._under_way: set[int] = set()
        self._publishers = 0
        self._source_ended = False
        self._begun = 0
        self._ended: Counter[str] = Counter()

    def started(self) -> None:
        super().started()
        self.context.pause()
        self.store.when_open(self.context.guard(self.context.resume))
        self.context.call_later(self.limits.tick_s, self._tick)

    def stopped(self) -> None:
        super().stopped()
        self._end_all("the node's subscriptions failed; subscribe again")

    def handle(self, message: Message) -> None:
        try:
            request, packs = opening_of(SUBSCRIBE.decode_request(message.payload))
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))
            return
        try:
            self._begin(message, request, packs)
        except PlanRefused as refused:
            self._ended[refused.status.name] += 1
            ended = SubscriptionEnded(request.request_id, 0, refused.status, str(refused))
            self.reply(message, SUBSCRIBE.encode_response(ended))

    def demand(self, message: Message) -> Demand:
        return Demand(Right.BLOCK_READ, self.store.chain)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)

    def handle_items(self, event: ItemEvent) -> None:
        if isinstance(event, BlockBegun):
            self._under_way.add(event.block_number)
        elif isinstance(event, BlockDropped):
            self._under_way.discard(event.block_number)
        for session in list(self._sessions):
            if session.is_early:
                session.early_event(event)
        self._look_for_end()

    def handle_notification(self, notification: Notification) -> None:
        if isinstance(notification, VerificationNotification):
            if not notification.success:
                self._under_way.discard(notification.block_number)
            # Subscriptions in the early mode learn how the block ended; all others read it once it is stored.
            root = notification.root if notification.success else None
            for session in list(self._sessions):
                session.early_verified(notification.attempt, root)
        elif isinstance(notification, PersistedNotification):
            self._under_way.discard(notification.block_number)
            for session in list(self._sessions):
                session.go_on()
        elif isinstance(notification, PublisherStatus):
            self._note_publishers(notification.active)
        elif isinstance(notification, NodeFailure):
            self._under_way.clear()
            self._end_all(notification.reason)
        elif isinstance(notification, NodeStopping):
            self._end_all(notification.reason)
        self._look_for_end()

    def statistics(self) -> SubscribeStatistics:
        return SubscribeStatistics(len(self._sessions), self._begun, dict(self._ended))

    def _begin(self, message: Message, request: Subscribe, packs: bool) -> None:
        available = self.store.available
        plan = plan_subscription(request, available.first, available.last, self.limits.ahead_blocks_max)
        # The limits of the node and of the identity come after the plan: a refused range takes nothing from them.
        if len(self._sessions) >= self.limits.sessions_max:
            raise PlanRefused(
                SubscribeStatus.ERROR, f"this node has {self.limits.sessions_max} subscriptions; try later"
            )
        if not message.return_route:
            return
        usage = message.origin.usage
        limited = usage.take("block_subscribe_sessions_max", message.origin.peer)
        if limited is not None:
            raise PlanRefused(SubscribeStatus.ERROR, limited)
        session = SubscribeSession(message, request, plan, self, packs=packs)
        # The worker may answer as soon as it is registered, so it is listed before.
        self._begun += 1
        self._sessions[session] = usage
        self._node.register([local(SESSION_PREFIX + self._new_id())], lambda: session)

    def left(self, session: SubscribeSession, status: SubscribeStatus | None) -> None:
        """Removes a subscription that has ended. status: None if the subscriber ended it or has disconnected."""
        usage = self._sessions.pop(session, None)
        if usage is not None:
            usage.give_back("block_subscribe_sessions_max")
            self._ended["LEFT" if status is None else status.name] += 1
            self._node.unregister(session.context.address)

    def _note_publishers(self, active: int) -> None:
        if active:
            self._source_ended = False
            for session in list(self._sessions):
                session.source_began()
        self._source_ended = self._source_ended or (self._publishers > 0 and not active)
        self._publishers = active

    def _look_for_end(self) -> None:
        """Informs all subscriptions once the last publisher is gone and none of its blocks is on the way."""
        if self._source_ended and not self._under_way:
            self._source_ended = False
            for session in list(self._sessions):
                session.source_ended()

    def _end_all(self, reason: str) -> None:
        for session in list(self._sessions):
            session.end(SubscribeStatus.ERROR, reason)

    def _tick(self) -> None:
        for session in list(self._sessions):
            if self._node.is_registered(session.peer) and not session.has_ended:
                session.tick()
            else:
                session.leave()
        self.context.call_later(self.limits.tick_s, self._tick)
