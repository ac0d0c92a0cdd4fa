"""The service `block_subscribe`: starts a worker for each subscription, and passes events on to all subscriptions.

All blocks come from the store by `block_node.read.feed`, so none is missed between history and live blocks. A
subscription in the early mode also sends items before they are verified, once it has sent all earlier blocks
(`early_event`). `plan_subscription` decides the meaning of a request. The service is not gating: subscribers read
stored blocks at their own speed, so none can slow down a publisher.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import ClassVar

import msgspec
import structlog
import trio

from block_node.blocks.errors import BlockFormatError
from block_node.events import (
    BlockBegun,
    BlockDropped,
    ItemEvent,
    ItemsReceived,
    NodeFailure,
    NodeStopping,
    Notification,
    PersistedNotification,
    PublisherStatus,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.item_splitting import HEAD_BYTES_MIN, ItemBatch, ItemSplitter, split_items, split_piece
from block_node.persist.chain_log import StoredParts
from block_node.persist.store import ChainStore
from block_node.protocol import Piece
from block_node.protocol_reading import (
    SUBSCRIBE,
    Received,
    Subscribe,
    Subscribed,
    SubscribedBlockEnd,
    SubscribedBlockWithdrawn,
    SubscribedItems,
    SubscribeResponse,
    SubscribeStatus,
    SubscriptionEnded,
    Unsubscribe,
    opening_of,
)
from block_node.read.feed import BlockFeed, PlanRefused, SubscribeLimits, SubscriptionPlan, plan_subscription
from block_node.read.packing import packed
from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError, error_payload
from ockam.quotas.usage import Usage

SESSION_PREFIX = "BS_"

CHUNK_BYTES = 1024 * 1024
"""The maximum number of bytes of items in one message, as the reference block node's `maxChunkSizeBytes`."""
MESSAGE_OVERHEAD_BYTES = 512
"""The bytes of a frame that a message needs in addition to its items: names, numbers, routes and sizes."""

logger = structlog.get_logger(__name__)


class SubscribeStatistics(msgspec.Struct, frozen=True):
    """The statistics of subscriptions since the start of the service. ended: ended and refused ones, by status."""

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
                session.note_source(True)
        self._source_ended = self._source_ended or (self._publishers > 0 and not active)
        self._publishers = active

    def _look_for_end(self) -> None:
        """Informs all subscriptions once the last publisher is gone and none of its blocks is on the way."""
        if self._source_ended and not self._under_way:
            self._source_ended = False
            for session in list(self._sessions):
                session.note_source(False)

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


class SubscribeSession(Worker):
    """The worker of one subscription (a `FeedTaker`). Its own address accepts `Received` and `Unsubscribe`.

    Invariant: `_outgoing` has the items that were read and not sent, each with the number of its block. While it is not
    empty, no read is in progress. `_early_attempt` is set while items of block `_feed.next_block` are sent before that
    block is verified; then nothing is read.
    """

    def __init__(
        self, request: Message, asked: Subscribe, plan: SubscriptionPlan, service: SubscribeService, *, packs: bool
    ) -> None:
        limits = service.limits
        self._request = request
        self._origin = request.origin
        self._request_id = asked.request_id
        self._plan = plan
        self._window_bytes = min(max(asked.window_bytes, limits.window_bytes_min), limits.window_bytes_max)
        self._service = service
        self._limits = limits
        self._now_s = service.now_s
        self._packs = packs
        self._began_s = self._moved_s = self._now_s()
        self._sequence = 0
        self._sent_bytes = self._taken_bytes = 0
        self._outgoing: deque[tuple[int, ItemBatch | SubscribedBlockEnd]] = deque()
        self._early_attempt: int | None = None
        self._is_over = False
        self._chunk_bytes = _chunk_bytes(request)
        self._splitter = ItemSplitter(self._chunk_bytes)
        self._feed = BlockFeed(
            plan,
            service.store,
            self,
            now_s=self._now_s,
            missing_s_max=limits.missing_s_max,
            guard=lambda read: self.context.guard(read),
        )

    @property
    def is_early(self) -> bool:
        return self._plan.early

    @property
    def peer(self) -> Address:
        """The first address of the route back. If it is not registered, the subscriber has disconnected."""
        return self._request.return_route[0]

    @property
    def has_ended(self) -> bool:
        """Whether the subscriber's connection has ended. A secure channel outlives its connection for a while."""
        return self._origin.has_ended

    def demand(self, message: Message) -> Demand | None:
        """Only the subscriber may confirm and end its subscription, through the connection that began it."""
        return Demand(Right.BLOCK_READ, self._service.store.chain) if message.return_route[:1] == (self.peer,) else None

    def started(self) -> None:
        self._respond(Subscribed(self._request_id, self._plan.start))
        self.go_on()

    def handle(self, message: Message) -> None:
        self._origin = message.origin
        try:
            request = SUBSCRIBE.decode_request(message.payload)
            if isinstance(request, Received):
                self._received(request.size_bytes)
            elif isinstance(request, Unsubscribe):
                self.leave()
            else:
                raise ProtocolError("this is a subscription; subscribe at `block_subscribe`")
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))

    def go_on(self) -> None:
        """Sends as much as possible. Called when a block was stored, and when the subscriber has confirmed items."""
        if not self._is_over:
            self._send_waiting()
            self._feed.go_on()

    def note_source(self, has_source: bool) -> None:
        """Notes whether a publisher is connected. If none is, the subscription ends after all stored blocks are
        sent."""
        self._feed.has_source = has_source
        if not has_source:
            self.go_on()

    def early_event(self, event: ItemEvent) -> None:
        """Handles an event of the block that the node receives. Called only in the early mode."""
        feed = self._feed
        if isinstance(event, BlockBegun):
            # Without a first block, the subscription begins with the next new one.
            if feed.next_block is None and self._plan.start is None:
                feed.next_block = event.block_number
            # Only the next block is sent early: the subscriber has all earlier ones.
            if not self._in_block and feed.is_waiting and event.block_number == feed.next_block:
                self._early_attempt = event.attempt
        elif self._early_attempt is not None and event.attempt == self._early_attempt:
            if isinstance(event, ItemsReceived):
                self._pass_on(event)
            elif isinstance(event, BlockDropped):
                self._withdraw()
                self.go_on()

    def early_verified(self, attempt: int, root: bytes | None) -> None:
        """Handles the verification result of the block that is sent early. `root`: None if the verification failed."""
        number = self._feed.next_block
        if self._early_attempt is None or attempt != self._early_attempt or number is None:
            return
        if root is None:
            self._withdraw()
        else:
            self._early_attempt = None
            self._respond(SubscribedBlockEnd(self._request_id, self._next_sequence(), number, root))
            self._feed.pass_over(number)
        self.go_on()

    def tick(self) -> None:
        """Ends the subscription at a time limit: a slow subscriber, a missing block, or a long subscription."""
        now_s, limits = self._now_s(), self._limits
        if not self._has_room:
            # A slow subscriber is ended before anything else, because nothing can be sent to it. Only a full window
            # shows that it is slow: other traffic of its connection can leave no room either. A peer that takes
            # nothing at all is disconnected by the transport.
            if self._is_window_full and now_s - self._moved_s >= limits.slow_s_max:
                self.end(SubscribeStatus.TOO_SLOW, f"nothing was taken for {limits.slow_s_max:g} s")
            return
        # A subscription that lasts too long ends between two blocks only.
        if limits.duration_s_max is not None and now_s - self._began_s >= limits.duration_s_max and not self._in_block:
            self.end(SubscribeStatus.SUCCESS, f"a subscription lasts {limits.duration_s_max:g} s")
        elif self._early_attempt is None:
            self._send_waiting()
            self._feed.tick()

    def end(self, status: SubscribeStatus, reason: str) -> None:
        """Ends the subscription with a last message. Safe to repeat."""
        if not self._is_over:
            self._respond(SubscriptionEnded(self._request_id, self._next_sequence(), status, reason))
            self.leave(status)

    def leave(self, status: SubscribeStatus | None = None) -> None:
        """Ends the subscription without a message. Safe to repeat. `status` is counted; None if the subscriber left."""
        if not self._is_over:
            self._is_over = True
            self._feed.close()
            self._outgoing.clear()
            self._service.left(self, status)

    def stopped(self) -> None:
        self.end(SubscribeStatus.ERROR, "the subscription failed; subscribe again")

    # Called by the feed.

    def has_room(self) -> bool:
        # A block that is sent early is not read from the store; reading continues after its end.
        return self._early_attempt is None and not self._outgoing

    def take_parts(self, found: StoredParts) -> None:
        place = found.place
        try:
            # A block can come in several reads, so the splitter lives until its end.
            chunks = [chunk for data in found.parts for chunk in self._splitter.feed(data)]
            if found.is_last:
                chunks += self._splitter.finish()
        except BlockFormatError as error:
            self.end(SubscribeStatus.ERROR, f"block {place.number} is damaged: {error}")
            return
        self._outgoing += [(place.number, chunk) for chunk in chunks]
        if found.is_last:
            # The number of this message in the subscription is set when the message is sent.
            self._outgoing.append((place.number, SubscribedBlockEnd(self._request_id, 0, place.number, place.root)))
            self._splitter = ItemSplitter(self._chunk_bytes)
        self._send_waiting()

    @property
    def _has_room(self) -> bool:
        return not self._is_window_full and not self._request.origin.is_behind(self._limits.window_bytes_max - 1)

    @property
    def _is_window_full(self) -> bool:
        return self._sent_bytes - self._taken_bytes >= self._window_bytes

    @property
    def _in_block(self) -> bool:
        """Whether items of the next block were read or sent, but the end of that block was not sent."""
        return self._feed.is_in_block or bool(self._outgoing) or self._early_attempt is not None

    def _received(self, size_bytes: int) -> None:
        if not self._taken_bytes <= size_bytes <= self._sent_bytes:
            raise ProtocolError(f"{size_bytes} bytes cannot have been taken; {self._sent_bytes} were sent")
        self._taken_bytes = size_bytes
        self._moved_s = self._now_s()
        self.go_on()

    def _send_waiting(self) -> None:
        while self._outgoing:
            number, chunk = self._outgoing[0]
            if isinstance(chunk, SubscribedBlockEnd):
                self._respond(msgspec.structs.replace(chunk, sequence=self._next_sequence()))
            elif self._has_room:
                self._send_items(number, chunk, verified=True)
            else:
                return
            self._outgoing.popleft()

    def _pass_on(self, event: ItemsReceived) -> None:
        """Sends items of an unverified block. Without room, withdraws the block: it is sent again once it is stored."""
        number = self._feed.next_block
        assert number is not None, "an early block has a number"
        if not self._has_room:
            self._withdraw()
            return
        if event.piece is Piece.WHOLE:
            chunks = split_items(event.items, self._chunk_bytes)
        else:
            chunks = split_piece(event.items[0], event.piece, self._chunk_bytes)
        for chunk in chunks:
            self._send_items(number, chunk, verified=False)

    def _withdraw(self) -> None:
        self._early_attempt = None
        if self._feed.next_block is not None:
            self._respond(SubscribedBlockWithdrawn(self._request_id, self._next_sequence(), self._feed.next_block))

    def _send_items(self, number: int, chunk: ItemBatch, *, verified: bool) -> None:
        self._sent_bytes += chunk.size_bytes
        # The time limit for a slow subscriber begins when its window is full. Until then, it may confirm some bytes
        # late: the client waits for a quarter of the window.
        if self._is_window_full:
            self._moved_s = self._now_s()
        sequence = self._next_sequence()
        items = SubscribedItems(self._request_id, sequence, number, verified, chunk.items, chunk.piece)
        self._respond(packed(items) if self._packs else items)

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _respond(self, response: SubscribeResponse) -> None:
        payload = SUBSCRIBE.encode_response(response)
        self.context.send(Message(self._request.return_route, (self.context.address,), payload))


def _chunk_bytes(request: Message) -> int:
    hops = sum(len(hop.value) for hop in request.return_route)
    room_bytes = request.origin.frame_bytes_max - MESSAGE_OVERHEAD_BYTES - hops
    return max(HEAD_BYTES_MIN, min(CHUNK_BYTES, room_bytes))
