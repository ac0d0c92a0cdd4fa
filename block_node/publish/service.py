"""The publishing service: opens sessions, passes notifications to the publish machine, and carries out its effects:
answers to publishers, events for the plugins, log lines.

`publish_machine` decides which publisher sends which block. `PublishSession` reads the messages of one publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import structlog
import trio

from block_node.events import (
    BlockOrigin,
    CatchUpStalled,
    ItemsReceived,
    NodeFailure,
    NodeStopping,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.persist.store import ChainStore
from block_node.protocol import (
    PUBLISH,
    BlockItems,
    EndOfBlock,
    OpenRootSession,
    OpenSession,
    PublishRequest,
    PublishResponse,
    PublishStatus,
    SessionOpened,
    StreamEnded,
)
from block_node.publish.block_machine import PublishLimits
from block_node.publish.publish_machine import (
    Effect,
    EndSession,
    LogLine,
    PublishMachine,
    PublishStatistics,
    SendResponse,
)
from block_node.publish.session import FindRoots, Mending, PublisherSession
from block_node.publish.session_machine import InvalidPublishRequest, MessageMissing, PublisherState
from ockam.actors.address import LOCAL, Address, Route, local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError, error_payload

SERVICE_ADDRESS = "block_publish"
TOKEN_BYTES_MAX = 64

logger = structlog.get_logger(__name__)


class PublishService(Plugin):
    """The publish machine, the sessions, and their clock. After a crash, the node starts the same object again.

    - store: asked at each tick which blocks are durable, since notifications can be lost.
    - last_block: the highest stored block. first_block: the first block of an empty node.
    - find_roots: see `Mending`.
    - new_id: makes the random names of sessions. A simulation controls it.
    - unread_bytes: the total size of the requests that sessions have not handed on completely.

    After every change of the machine, the caller calls `perform`.
    """

    name: ClassVar[str] = "publish"

    def __init__(
        self,
        node: Node,
        facility: Facility,
        store: ChainStore,
        *,
        last_block: int | None,
        first_block: int,
        limits: PublishLimits | None,
        new_id: Callable[[], str],
        find_roots: FindRoots,
    ) -> None:
        super().__init__(facility)
        self.node = node
        self.store = store
        self.limits = limits or PublishLimits()
        self.machine = PublishMachine(
            self.limits, last_block=last_block, first_block=first_block, now_s=trio.current_time()
        )
        self.mending = Mending(facility, store, self.limits, find_roots)
        self.unread_bytes = 0
        self._new_id = new_id
        self._sessions: dict[int, PublisherSession] = {}
        self._addresses: dict[tuple[Route, OpenSession | OpenRootSession], Address] = {}
        self._opened = self._starts = self._forwarded_items = 0
        self._performing = self._waits_for_room = self._is_resting = False

    def register(self) -> None:
        self.node.register([local(SERVICE_ADDRESS)], lambda: self)

    def started(self) -> None:
        super().started()
        self._starts += 1
        if self._starts > 1:
            # Notifications may have been lost in the crash, so the state of blocks in flight is unknown.
            self.machine.node_failed(NodeFailure("publishing failed; it was started anew"), trio.current_time())
            self.perform()
            self._announce_stored()
        self._tick()

    # Opening sessions.

    def handle(self, message: Message) -> None:
        # Only an opening message with a return route is valid here.
        try:
            request = PUBLISH.decode_request(message.payload)
            if not isinstance(request, OpenSession | OpenRootSession):
                raise ProtocolError("open a session first, and send what follows to the address that answers")
            if not message.return_route:
                raise ProtocolError("there is no way back")
            if len(request.token) > TOKEN_BYTES_MAX:
                raise ProtocolError(f"a token of {len(request.token)} bytes; at most {TOKEN_BYTES_MAX}")
        except ProtocolError as error:
            logger.info("block_publish_refused", **message.origin.who, reason=str(error))
            self.reply(message, error_payload(str(error)))
            return
        # The node may be unable to take blocks now, or the identity may have too many sessions: the answer ends the
        # stream.
        refusal = self._open(message, request)
        if refusal is not None:
            self.reply(message, PUBLISH.encode_response(refusal))

    def demand(self, message: Message) -> Demand:
        return Demand(Right.BLOCK_PUBLISH, self.store.chain)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return PUBLISH.encode_response(StreamEnded(PublishStatus.ERROR, self.machine.last_block, None, reason))

    def admit(self, origin: Origin) -> int | StreamEnded:
        """Returns the id of a new publisher, or the StreamEnded that says why no publisher may come now."""
        missing, most, last_block = self.facility.missing, self.limits.sessions_max, self.machine.last_block
        status, reason = PublishStatus.ERROR, None
        if missing:
            reason = f"the node is starting its {', '.join(sorted(missing))} anew; try again"
        elif self.machine.publishers >= most:
            reason = f"{most} publishers are connected already; try again later, or another node"
        elif (unstored := self.store.refusal) is not None:
            reason = f"no block can be stored now: {unstored}; try another node"
            status = PublishStatus.PERSISTENCE_FAILED
        else:
            # An identity has a quota of sessions, which each session gives back when it closes.
            reason = origin.usage.take("block_publish_sessions_max", origin.peer)
        if reason is not None:
            return StreamEnded(status, last_block, None, reason)
        self._opened += 1
        return self._opened

    def _open(self, message: Message, request: OpenSession | OpenRootSession) -> StreamEnded | None:
        """Opens a session. A repeated opening is answered by its session. Returns the answer of a refusal."""
        opening = (message.return_route, request)
        address = self._addresses.get(opening)
        worker = self.node.find_worker(address) if address is not None else None
        if isinstance(worker, PublishSession):
            worker.opened()
            return None
        admitted = self.admit(message.origin)
        if isinstance(admitted, StreamEnded):
            return admitted
        address = local(f"block_publish_{self._new_id()}")
        session = PublishSession(admitted, message, request, self)
        self._addresses[opening] = address
        self.node.register([address], lambda: session)
        return None

    def sessions(self) -> list[PublisherSession]:
        return list(self._sessions.values())

    def join(self, session: PublisherSession) -> None:
        self._sessions[session.publisher.publisher_id] = session
        self.machine.join(session.publisher)
        self.perform()

    # Reading from publishers.

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
        """Whether to hand on more of a request now. False while the plugins are full: an undivided request takes less
        memory."""
        if self.facility.full:
            self._wait_for_room()
            return False
        return self.may_read(publisher)

    # Notifications, and the clock.

    def handle_notification(self, notification: Notification) -> None:
        now_s = trio.current_time()
        if isinstance(notification, VerificationNotification):
            self.machine.verified(notification, now_s)
        elif isinstance(notification, PersistedNotification):
            self.machine.persisted(notification, now_s)
        elif isinstance(notification, NodeFailure):
            self.machine.node_failed(notification, now_s)
        elif isinstance(notification, NodeStopping):
            self.machine.node_stops(notification.reason, now_s)
        self.mending.handle_notification(notification)
        self.perform()

    def _tick(self) -> None:
        self.tick()
        self.context.call_later(self.limits.tick_s, self._tick)

    def tick(self) -> None:
        """Checks deadlines, and ends the sessions of publishers that have disconnected."""
        for session in self.sessions():
            if not session.reachable:
                session.leave()
        self.mending.tick()
        self._announce_stored()
        self.machine.tick(trio.current_time(), full_at=self.facility.full_at)
        self.perform()
        # An opening message that comes again after the end of its session opens a new session.
        for opening, address in list(self._addresses.items()):
            if not self.node.is_registered(address):
                del self._addresses[opening]

    def statistics(self) -> PublishStatistics:
        return self.machine.statistics()

    def _announce_stored(self) -> None:
        """Announces durable blocks of which no plugin has heard, after a crash or a commit in doubt."""
        number = self.machine.blocks.watermark.next_durable
        while number in self.store.ever_stored:
            self.facility.publish(PersistedNotification(number, True, BlockOrigin.HISTORY))
            number += 1

    # The effects of the machine.

    def perform(self) -> None:
        """Carries out all effects, forwards items, and lets sessions read again. An effect can call this method again.
        This inner call does nothing, so the effects keep their order."""
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
            self.facility.publish(effect)

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
        if self.facility.full:
            self._wait_for_room()
            return
        event = machine.blocks.forward(block, trio.current_time())
        machine.forward_due = True
        if isinstance(event, ItemsReceived):
            self._forwarded_items += len(event.items)
        self.facility.publish(event)
        if self._forwarded_items >= limit:
            # The remaining items are forwarded after other workers have run. Otherwise one large block would stop the
            # whole node.
            self._is_resting = True
            self.context.call_later(0, self._go_on)

    def _wait_for_room(self) -> None:
        # The function is registered once; the facility keeps the function until the plugins have room.
        if not self._waits_for_room:
            self._waits_for_room = True
            self.facility.when_room(self._room)

    def _room(self) -> None:
        self._waits_for_room = False
        self.machine.forward_due = self.machine.admit_due = True
        self.perform()

    def _go_on(self) -> None:
        self.machine.go_on(trio.current_time())
        self.perform()

    def _has_room(self) -> bool:
        return not self.facility.full and not self._is_resting


class PublishSession(PublisherSession, Worker):
    """The worker of one publisher's session.

    To stop reading from its publisher, the worker pauses its mailbox. The mailbox then fills, and the publisher's
    connection stops reading. Invariant: while `publisher.is_held` is True, the mailbox is paused, and `_held_run` has
    the messages that were delivered but not handled.
    """

    def __init__(
        self, publisher_id: int, opening: Message, request: OpenSession | OpenRootSession, service: PublishService
    ) -> None:
        peer, wants_roots = opening.origin.peer, isinstance(request, OpenRootSession)
        publisher = PublisherState(publisher_id, wants_roots, trio.current_time(), f"Ockam {peer}")
        super().__init__(publisher, service.machine, service.mending, service.perform, opening.origin.usage, peer)
        self._service = service
        self.token = request.token
        self.route: Route = opening.return_route
        self._origin = opening.origin
        self._held_run: Sequence[Message] = ()

    @property
    def reachable(self) -> bool:
        """Whether the connection to the publisher still exists. True for a route that does not begin locally."""
        # A secure channel, which the route then begins with, outlives its connection for a while.
        first = self.route[0]
        return not self._origin.has_ended and (first.type != LOCAL or self._service.node.is_registered(first))

    def started(self) -> None:
        # After a crash, the node starts the worker again. The session is over then: its block was given up, and its
        # publisher was notified.
        if not self._is_over:
            self._service.join(self)
            self.opened()

    def stopped(self) -> None:
        # After a crash too, the incomplete block is given up and the address becomes free.
        if not self._is_over:
            block_number = self.publisher.session.block_number
            self.end(PublishStatus.ERROR, block_number, "the node failed on this stream; open another one")

    def opened(self) -> None:
        """Answers the opening message. The publisher can repeat that message, and every copy is answered."""
        self.respond(SessionOpened(self.token, self._machine.last_block, self._machine.blocks.next_block))

    def demand(self, message: Message) -> Demand | None:
        """Only the publisher that opened the session may use it, through the same connection."""
        is_its_own = message.return_route[:1] == self.route[:1]
        return Demand(Right.BLOCK_PUBLISH, self._service.store.chain) if is_its_own else None

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        last_block = self._machine.last_block
        return PUBLISH.encode_response(StreamEnded(PublishStatus.ERROR, last_block, None, reason))

    # Every message shows that the publisher is alive, also one that must wait.
    def receive(self, run: Sequence[Message]) -> None:
        self.publisher.used_s = trio.current_time()
        slice_bytes = 0
        for position, message in enumerate(run):
            self._origin = message.origin
            # An earlier message may have ended the stream.
            if self._is_over:
                return
            if not self._service.may_read(self.publisher):
                self._hold(run[position:])
                return
            if slice_bytes >= self._service.limits.slice_bytes_max:
                # Other workers of the node run before the remaining messages are handled.
                self._hold(run[position:])
                self.context.call_later(0, self._read_on)
                return
            slice_bytes += len(message.payload)
            try:
                self._take(PUBLISH.decode_request(message.payload))
            except InvalidPublishRequest as error:
                self.end(PublishStatus.INVALID_REQUEST, self.publisher.session.block_number, str(error))
            except (ProtocolError, MessageMissing) as error:
                self.end(PublishStatus.ERROR, self.publisher.session.block_number, str(error))

    # Calls from the service.

    def _answer(self, response: PublishResponse) -> None:
        self.context.send(Message(self.route, (self.context.address,), PUBLISH.encode_response(response)))

    def _closed(self, ended: StreamEnded | None) -> None:
        if ended is not None:
            self._answer(ended)
        self._service.node.unregister(self.context.address)

    def admit(self) -> None:
        if self.publisher.is_held:
            self.publisher.is_held = False
            self.context.call_later(0, self._read_on)

    # The path of a message.

    def _take(self, request: PublishRequest) -> None:
        """Handles one message. Raises InvalidPublishRequest, ProtocolError or MessageMissing for a wrong one."""
        if isinstance(request, OpenSession | OpenRootSession):
            raise InvalidPublishRequest("a session is opened at the service's address")
        # A repeated message is ignored. A message after a gap cannot be used.
        if not self.publisher.session.in_order(request.sequence):
            return
        if isinstance(request, BlockItems):
            self.items(request.items, request.piece)
        elif isinstance(request, EndOfBlock):
            self.block_end(request.block_number)
        else:
            self.stream_end(request)
        self._service.perform()

    def _hold(self, run: Sequence[Message]) -> None:
        self.publisher.is_held = True
        self._held_run = run
        self.context.pause()

    def _read_on(self) -> None:
        self.publisher.is_held = False
        run, self._held_run = self._held_run, ()
        if not self._is_over:
            self.context.resume()
            self.receive(run)
