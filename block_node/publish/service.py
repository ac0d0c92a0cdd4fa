"""The publishing service: opens sessions, and passes notifications on to the desk. A plugin like the others.

What a session does is `block_node.publish.session`'s business, what is answered `block_node.publish.desk`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
import structlog
import trio

from block_node.events import (
    NodeFailed,
    NodeStopping,
    Notification,
    PersistedNotification,
    Source,
    VerificationNotification,
)
from block_node.facility import Facility, Plugin
from block_node.protocol import PUBLISH, OpenRootSession, OpenSession, PublishStatus, StreamEnded
from block_node.publish.desk import PublishDesk
from block_node.publish.limits import PublishLimits
from block_node.publish.publisher import DeskStatistics
from block_node.publish.session import PublishSession, session_address
from ockam.address import Address, Route, local
from ockam.message import Message
from ockam.node import Node
from ockam.protocol import ProtocolError, error_payload
from ockam.worker import Context

SERVICE_ADDRESS = "block_publish"
TOKEN_BYTES_MAX = 64

logger = structlog.get_logger(__name__)


class KnownSession(msgspec.Struct, frozen=True):
    """Which opening message a session came of."""

    route: Route
    request: OpenSession | OpenRootSession


class PublishService:
    """What outlives a crash of the worker: the desk, and which sessions there are.

    is_stored: whether a block is durable; asked where a notification may have been missed. first_block: with which the
    chain of an empty node begins. store_refusal: why no block would be stored now, where that is known. new_id, now_s:
    randomness, and a clock that never goes back, in seconds; parameters so that a simulation can own them.
    """

    def __init__(
        self,
        node: Node,
        facility: Facility,
        *,
        last_block: int | None,
        is_stored: Callable[[int], bool],
        new_id: Callable[[], str],
        first_block: int = 0,
        limits: PublishLimits | None = None,
        now_s: Callable[[], float] = trio.current_time,
        store_refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.node = node
        self.facility = facility
        self.limits = limits or PublishLimits()
        self.now_s = now_s
        self.store_refusal = store_refusal
        self.desk = PublishDesk(
            facility,
            self.limits,
            last_block=last_block,
            first_block=first_block,
            now_s=now_s,
            go_on_soon=self._go_on_soon,
        )
        self._is_stored = is_stored
        self._new_id = new_id
        self._sessions: dict[KnownSession, Address] = {}
        self._opened = 0
        self._lives = 0
        self._context: Context | None = None

    def worker_started(self, context: Context) -> None:
        """A life of the worker begins; what an earlier one had under way is nobody's."""
        self._lives += 1
        self._context = context
        if self._lives > 1:
            self.desk.node_failed(NodeFailed("publishing failed; it was started anew"))
            self._note_stored()

    def _go_on_soon(self) -> None:
        """Where the worker fails before, its next life and every tick go on."""
        if self._context is not None:
            self._context.call_later(0, self.desk.go_on)

    def _note_stored(self) -> None:
        """What became durable while the worker was away."""
        while self._is_stored(block_number := self.desk.custody.watermark.next_block):
            self.desk.persisted(PersistedNotification(block_number, True, Source.HISTORY))

    def register(self, address: str = SERVICE_ADDRESS) -> None:
        """Start the worker."""
        self.node.register([local(address)], lambda: PublishWorker(self))

    def open(self, message: Message, request: OpenSession | OpenRootSession) -> None:
        """Open a session, or answer for the one that this message opened before."""
        known = KnownSession(message.return_route, request)
        address = self._sessions.get(known)
        worker = self.node.find_worker(address) if address is not None else None
        if isinstance(worker, PublishSession):
            worker.opened()
            return
        self._opened += 1
        address = session_address(self._new_id())
        session = PublishSession(
            self._opened, message, request, self.node, self.desk, self.now_s, self.limits.slice_bytes_max
        )
        self._sessions[known] = address
        self.node.register([address], lambda: session)

    def forget_closed(self) -> None:
        """Sessions that have ended are not known any more."""
        for known, address in list(self._sessions.items()):
            if not self.node.is_registered(address):
                del self._sessions[known]

    def statistics(self) -> DeskStatistics:
        return self.desk.statistics()


class PublishWorker(Plugin):
    """Serves `block_publish`."""

    name: ClassVar[str] = "publish"

    def __init__(self, service: PublishService) -> None:
        super().__init__(service.facility)
        self._service = service

    def started(self) -> None:
        super().started()
        self._service.worker_started(self.context)
        self._tick()

    def handle(self, message: Message) -> None:
        try:
            request = PUBLISH.decode_request(message.payload)
            if not isinstance(request, OpenSession | OpenRootSession):
                raise ProtocolError("open a session first, and send what follows to the address that answers")
            if not message.return_route:
                raise ProtocolError("there is no way back")
            if len(request.token) > TOKEN_BYTES_MAX:
                raise ProtocolError(f"a token of {len(request.token)} bytes; at most {TOKEN_BYTES_MAX}")
        except ProtocolError as error:
            logger.info("block_publish_refused", peer=message.origin.peer, reason=str(error))
            self.reply(message, error_payload(str(error)))
            return
        refusal = self._find_refusal()
        if refusal is not None:
            self.reply(message, PUBLISH.encode_response(refusal))
            return
        self._service.open(message, request)

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        ended = StreamEnded(PublishStatus.ERROR, self._service.desk.last_block, None, reason)
        return PUBLISH.encode_response(ended)

    def handle_notification(self, notification: Notification) -> None:
        desk = self._service.desk
        if isinstance(notification, VerificationNotification):
            desk.verified(notification)
        elif isinstance(notification, PersistedNotification):
            desk.persisted(notification)
        elif isinstance(notification, NodeFailed):
            desk.node_failed(notification)
        elif isinstance(notification, NodeStopping):
            desk.node_stops(notification)

    def _find_refusal(self) -> StreamEnded | None:
        service = self._service
        missing, most, last_block = service.facility.missing, service.limits.sessions_max, service.desk.last_block
        if missing:
            reason = f"the node is starting its {', '.join(sorted(missing))} anew; try again"
        elif service.desk.publishers >= most:
            reason = f"{most} publishers are connected already; try again later, or another node"
        elif (unstored := service.store_refusal()) is not None:
            reason = f"no block can be stored now: {unstored}; try another node"
            return StreamEnded(PublishStatus.PERSISTENCE_FAILED, last_block, None, reason)
        else:
            return None
        return StreamEnded(PublishStatus.ERROR, last_block, None, reason)

    def _tick(self) -> None:
        self._service.desk.tick()
        self._service.forget_closed()
        self.context.call_later(self._service.limits.tick_s, self._tick)
