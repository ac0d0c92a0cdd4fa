"""The publishing service: a plugin that opens sessions, and passes notifications to the publish machine.

`publish_machine` decides which publisher sends which block. `session` reads the messages of one publisher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import structlog

from block_node.events import (
    BlockOrigin,
    NodeFailure,
    NodeStopping,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.persist.store import ChainStore
from block_node.protocol import PUBLISH, OpenRootSession, OpenSession, PublishStatus, StreamEnded
from block_node.publish.limits import PublishLimits
from block_node.publish.mending import FindRoots, Mending
from block_node.publish.publish_machine import PublishMachine
from block_node.publish.runner import PublishRunner
from block_node.publish.session import PublishSession
from block_node.publish.statistics import PublishStatistics
from ockam.actors.address import Address, Route, local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Context
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError, error_payload

SERVICE_ADDRESS = "block_publish"
TOKEN_BYTES_MAX = 64

logger = structlog.get_logger(__name__)


class PublishService:
    """The publish machine, the sessions, and all other state of publishing that survives a crash of the worker.

    - store: asked at each tick which blocks are durable, since notifications can be lost.
    - last_block: the highest stored block. first_block: the first block of an empty node.
    - find_roots: see `block_node.publish.mending.Mending`.
    - now_s: a clock that never goes back. A simulation controls it, and `new_id`, the random names of sessions.
    """

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
        now_s: Callable[[], float],
        find_roots: FindRoots,
    ) -> None:
        self.node = node
        self.facility = facility
        self.store = store
        self.limits = limits or PublishLimits()
        self.now_s = now_s
        self.machine = PublishMachine(self.limits, last_block=last_block, first_block=first_block, now_s=now_s())
        self.mending = Mending(facility, store, self.limits, now_s, find_roots)
        self.runner = PublishRunner(self.machine, facility, self.limits, now_s, self.mending)
        self._new_id = new_id
        self._addresses: dict[tuple[Route, OpenSession | OpenRootSession], Address] = {}
        self._opened = 0
        self._worker_starts = 0

    def register(self, address: str = SERVICE_ADDRESS) -> None:
        self.node.register([local(address)], lambda: PublishWorker(self))

    def worker_started(self, context: Context) -> None:
        """Handles a start of the worker. A restart after a crash ends all sessions."""
        self._worker_starts += 1
        self.runner.call_later = context.call_later
        if self._worker_starts == 1:
            return
        # Notifications may have been lost with the failed worker, so the state of blocks in flight is unknown.
        self.machine.node_failed(NodeFailure("publishing failed; it was started anew"), self.now_s())
        self.runner.perform()
        self._announce_stored()

    # Sessions.

    def admit(self, origin: Origin) -> int | StreamEnded:
        """Returns the id of a new publisher of any protocol. Its session counts for its identity until
        `Usage.give_back`. If no publisher, or none of this identity, may come now, returns the last answer instead."""
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

    def open(self, message: Message, request: OpenSession | OpenRootSession) -> StreamEnded | None:
        """Opens a session. If the same message opened a session before, that session answers again. Returns the closing
        answer if the publisher is not admitted now."""
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
        session = PublishSession(admitted, message, request, self.node, self.runner, self.store.chain)
        self._addresses[opening] = address
        self.node.register([address], lambda: session)
        return None

    def tick(self) -> None:
        """Checks deadlines, and ends the sessions of publishers that have disconnected."""
        for session in self.runner.sessions():
            if not session.reachable:
                session.leave()
        self.mending.tick()
        self._announce_stored()
        self.machine.tick(self.now_s(), full_at=self.facility.full_at)
        self.runner.perform()
        # An opening message that comes again after the end of its session opens a new session.
        for opening, address in list(self._addresses.items()):
            if not self.node.is_registered(address):
                del self._addresses[opening]

    def statistics(self) -> PublishStatistics:
        return self.machine.statistics()

    def _announce_stored(self) -> None:
        """Announces durable blocks that nobody has announced to the plugins: they became durable during a crash, or by
        a commit in doubt. Otherwise publishing and verification would not go on with the same block."""
        number = self.machine.blocks.next_durable
        while number in self.store.ever_stored:
            self.facility.publish(PersistedNotification(number, True, BlockOrigin.HISTORY))
            number += 1


class PublishWorker(Plugin):
    name: ClassVar[str] = "publish"

    def __init__(self, service: PublishService) -> None:
        super().__init__(service.facility)
        self._service = service

    def started(self) -> None:
        super().started()
        self._service.worker_started(self.context)
        self._tick()

    def handle(self, message: Message) -> None:
        # Only an opening message, with a way back, belongs here.
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
        refusal = self._service.open(message, request)
        if refusal is not None:
            self.reply(message, PUBLISH.encode_response(refusal))

    def demand(self, message: Message) -> Demand:
        return Demand(Right.BLOCK_PUBLISH, self._service.store.chain)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        ended = StreamEnded(PublishStatus.ERROR, self._service.machine.last_block, None, reason)
        return PUBLISH.encode_response(ended)

    def handle_notification(self, notification: Notification) -> None:
        machine, now_s = self._service.machine, self._service.now_s()
        if isinstance(notification, VerificationNotification):
            machine.verified(notification, now_s)
        elif isinstance(notification, PersistedNotification):
            machine.persisted(notification, now_s)
        elif isinstance(notification, NodeFailure):
            machine.node_failed(notification, now_s)
        elif isinstance(notification, NodeStopping):
            machine.node_stops(notification.reason, now_s)
        self._service.mending.handle_notification(notification)
        self._service.runner.perform()

    def _tick(self) -> None:
        self._service.tick()
        self.context.call_later(self._service.limits.tick_s, self._tick)
