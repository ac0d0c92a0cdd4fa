"""The methods of the door: for each path, the handler that answers it and the right that its caller needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import ClassVar, NamedTuple
from weakref import WeakSet

import structlog
import trio

from block_node.blocks.errors import BlockFormatError
from block_node.events import NodeFailure, NodeStopping, Notification, PersistedNotification
from block_node.facility import Plugin
from block_node.grpc.calls.about import HealthCall, ReflectionCall, write_detail, write_status
from block_node.grpc.calls.publish import DoorPublishers, PublishCall, refuse_not_ready
from block_node.grpc.calls.statistics import GrpcCallStatistics
from block_node.grpc.http2.connection import CallHandler, GrpcCall, SingleRequest, UnaryHandler, guarded
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.limits import ASK_BYTES_MAX, SERVICES, GrpcLimits
from block_node.grpc.messages import (
    BLOCK_NODE,
    HEALTH,
    NO_BLOCK,
    REFLECTION,
    REFLECTION_ALPHA,
    block_prefix,
    items_prefix,
    read_message,
    write_message,
)
from block_node.item_splitting import SetCutter, SetPart
from block_node.node import BlockNode
from block_node.persist.chain_log import BlockNumberUnknown, ReadBlocks, StoredParts
from block_node.persist.store import ChainStore
from block_node.protocol_reading import GetStatus, Subscribe, SubscribeStatus
from block_node.read.feed import READ_BYTES, BlockFeed, PlanRefused, SubscribeLimits, plan_subscription
from block_node.read.services import ReadServices
from block_node.read.subscribe import SubscribeStatistics
from ockam.actors.address import local
from ockam.actors.message import Origin
from ockam.actors.node import Node
from ockam.identity.rules.rights import Right
from stream_storage.errors import DatabaseCorrupt, StorageClosed


class AccessCall(SingleRequest):
    """`getBlock`: sends one stored block, part by part, so that a block of any size is sent in bounded memory.

    Invariant: at most one read is in progress. `_part` is the next part of block `_number` to be read.
    """

    def __init__(self, call: GrpcCall, store: ChainStore, counted: dict[str, int]) -> None:
        self._call = call
        self._store = store
        self._counted = counted
        self._number: int | None = None
        self._part = 0
        self._is_over = self._is_reading = False
        self._has_read = guarded(call, self._note_read, lambda: self.ended(""))

    def answer(self, message: bytes) -> None:
        self._counted["get_block_requests"] += 1
        request = read_message("BlockRequest", message)
        available, asked = self._store.available, request.get("block_number")
        if asked is None and not request.get("retrieve_latest"):
            self._answer(GetStatus.INVALID_REQUEST, "ask for a block_number, or retrieve_latest")
            return
        number = available.last if asked is None or asked == NO_BLOCK else asked
        if number is None or number not in available:
            has = "no blocks" if available.first is None else f"blocks {available.first} to {available.last}"
            self._answer(GetStatus.NOT_AVAILABLE, f"this block is not here; the node has {has}")
        else:
            self._number = number
            self._read()

    def room(self) -> None:
        if not self._is_reading and not self._is_over:
            self._read()

    def ended(self, reason: str) -> None:
        self._is_over = True

    def _read(self) -> None:
        assert self._number is not None, "a block was asked for"
        self._is_reading = True
        try:
            self._store.read(self._number, self._part, READ_BYTES, self._has_read)
        except StorageClosed:
            self._is_over = True
            self._call.abort(GrpcStatus.UNAVAILABLE, "the node stops; try again")

    def _note_read(self, operation: ReadBlocks) -> None:
        self._is_reading = False
        if self._is_over:
            return
        error = operation.error
        if error is not None:
            self._refuse(error)
            return
        found = operation.found[0]
        # The place of the block names the size of the whole message, so the message begins before the rest is read.
        if self._part == 0:
            prefix = block_prefix(GetStatus.SUCCESS, found.place.size_bytes)
            if found.is_last:
                has_room = self._call.send(prefix, *found.parts)
            else:
                has_room = self._call.begin_message(len(prefix) + found.place.size_bytes, prefix, *found.parts)
        else:
            has_room = self._call.send_part(*found.parts)
        self._part = found.next_part
        if found.is_last:
            self._is_over = True
            self._counted["get_block_requests_success"] += 1
            self._call.finish()
        elif has_room:
            self._read()

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, BlockNumberUnknown):
            logger.error("block_not_read", block=self._number, reason=str(error))
        if self._part:
            # A part of the message was sent, so the status in the message cannot change.
            self._is_over = True
            self._call.abort(GrpcStatus.DATA_LOSS, f"block {self._number} cannot be read: {error}")
        elif isinstance(error, BlockNumberUnknown):
            self._answer(GetStatus.NOT_AVAILABLE, str(error))
        else:
            self._answer(GetStatus.NOT_FOUND if isinstance(error, DatabaseCorrupt) else GetStatus.ERROR, str(error))

    def _answer(self, status: GetStatus, reason: str) -> None:
        self._is_over = True
        self._counted["get_block_requests_not_available"] += status is GetStatus.NOT_AVAILABLE
        self._counted["get_block_requests_not_found"] += status is GetStatus.NOT_FOUND
        self._call.send(write_message("BlockResponse", {"status": int(status)}))
        # The message has no field for the reason.
        self._call.finish(GrpcStatus.OK, reason)


PLUGIN_ADDRESS = local("block_grpc")
FILES = (BLOCK_NODE, HEALTH, REFLECTION, REFLECTION_ALPHA)

logger = structlog.get_logger(__name__)


class SubscribeCall(SingleRequest):
    """`subscribeBlockStream` for one subscriber: sends stored blocks, whole and in order, each followed by its end.

    Invariant: `_is_full` is true exactly while the call has no room."""

    def __init__(self, call: GrpcCall, services: GrpcServices, origin: Origin) -> None:
        self._call = call
        self._services = services
        self._store = services.blocks.store
        self._plan_limits = services.plan_limits
        self._began_s = trio.current_time()
        self._cutter = SetCutter()
        self._is_full = False
        self._is_over = False
        self.origin = origin
        self.feed: BlockFeed | None = None

    # Called by the connection.

    def answer(self, message: bytes) -> None:
        request = read_message("SubscribeStreamRequest", message)
        start, end = request.get("start_block_number", 0), request.get("end_block_number", 0)
        asked = Subscribe(0, None if start == NO_BLOCK else start, None if end == NO_BLOCK else end, False, 0)
        available = self._store.available
        try:
            plan = plan_subscription(asked, available.first, available.last, self._plan_limits.ahead_blocks_max)
            # A refused range takes nothing from the limits of the node and of the identity.
            self._services.begin(self)
        except PlanRefused as refused:
            self.end(refused.status, str(refused))
            return
        self.feed = BlockFeed(
            plan,
            self._store,
            self,
            now_s=trio.current_time,
            missing_s_max=self._plan_limits.missing_s_max,
            guard=lambda read: guarded(self._call, read, lambda: self._close(SubscribeStatus.ERROR)),
        )
        self.feed.go_on()

    def room(self) -> None:
        self._is_full = False
        if self.feed is not None:
            self.feed.go_on()

    def ended(self, reason: str) -> None:
        self._close(None)

    # Called by the feed.

    def has_room(self) -> bool:
        return not self._is_full

    def take_parts(self, found: StoredParts) -> None:
        try:
            for data in found.parts:
                for part in self._cutter.feed(data):
                    self._note_room(self._send_set(part))
            if found.is_last:
                self._cutter.finish()
                end = write_message("SubscribeStreamResponse", {"end_of_block": {"block_number": found.place.number}})
                self._note_room(self._call.send(end))
        except BlockFormatError as error:
            reason = f"block {found.place.number} is damaged: {error}"
            logger.error("block_not_read", block=found.place.number, reason=reason)
            self._call.abort(GrpcStatus.DATA_LOSS, reason)
            self._close(SubscribeStatus.ERROR)

    def end(self, status: SubscribeStatus, reason: str) -> None:
        if self._cutter.is_in_item:
            # A message has begun and stays incomplete, so no message with the status can follow it.
            self._call.abort(GrpcStatus.INTERNAL, reason)
        else:
            self._call.send(write_message("SubscribeStreamResponse", {"status": int(status)}))
            self._call.finish(GrpcStatus.OK, reason)
        self._close(status)

    # Called by the services.

    def tick(self) -> None:
        if self.feed is not None:
            duration_s = self._plan_limits.duration_s_max
            if duration_s is not None and trio.current_time() - self._began_s >= duration_s:
                self.feed.stop(f"a subscription lasts {duration_s:g} s")
            self.feed.tick()

    def _send_set(self, part: SetPart) -> bool:
        if part.begins_bytes is None:
            return self._call.send_part(*part.pieces)
        prefix = items_prefix(part.begins_bytes)
        if part.begins_bytes == sum(map(len, part.pieces)):
            return self._call.send(prefix, *part.pieces)
        # A large set goes out as it is read, so its size is written before its bytes are known.
        return self._call.begin_message(len(prefix) + part.begins_bytes, prefix, *part.pieces)

    def _note_room(self, has_room: bool) -> None:
        self._is_full = self._is_full or not has_room

    def _close(self, status: SubscribeStatus | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self.feed is not None:
            self.feed.close()
        self._services.end(self, status)


class GrpcServices(Plugin):
    """The calls of one chain, and the plugin that passes events on to their subscriptions. It delays nobody, because
    subscriptions read stored blocks. After a crash, the node starts the same object again.

    Invariant: `_subscriptions` has each subscription whose plan was accepted.
    """

    name: ClassVar[str] = "grpc"
    gating: ClassVar[bool] = False

    def __init__(
        self,
        node: Node,
        blocks: BlockNode,
        read: ReadServices,
        limits: GrpcLimits,
        *,
        plan_limits: SubscribeLimits | None = None,
    ) -> None:
        super().__init__(blocks.facility)
        self._node = node
        self._read = read
        self._limits = limits
        self._publishers = DoorPublishers(limits.behind_again_s)
        self._counted = self._publishers.counted
        self._subscriptions: dict[SubscribeCall, None] = {}
        self._begun = 0
        self._ended: Counter[str] = Counter()
        self.blocks = blocks
        self.plan_limits = plan_limits or SubscribeLimits()

    def start(self) -> None:
        self._node.register([PLUGIN_ADDRESS], lambda: self)

    def close(self) -> None:
        self._stop_all()
        self._node.unregister(PLUGIN_ADDRESS)

    def statistics(self) -> GrpcCallStatistics:
        numbers = [each.block_number for each in self._publishers.open]
        inbound = [number for number in numbers if number is not None]
        return GrpcCallStatistics(
            publishers=len(numbers),
            lowest_inbound=min(inbound, default=None),
            highest_inbound=max(inbound, default=None),
            window_closed_s=self._publishers.windows_s(),
            subscribe=SubscribeStatistics(len(self._subscriptions), self._begun, dict(self._ended)),
            counted=dict(self._counted),
        )

    # The calls. Each function makes the handler of a call, and can raise CallRefused.

    def publish(self, call: GrpcCall) -> CallHandler:
        if self.blocks.publishing is None:
            raise refuse_not_ready()
        return PublishCall(call, self.blocks.publishing, origin_of(call), self._limits, self._publishers)

    def subscribe(self, call: GrpcCall) -> CallHandler:
        self._check_open()
        return SubscribeCall(call, self, origin_of(call))

    def get_block(self, call: GrpcCall) -> CallHandler:
        self._check_open()
        return AccessCall(call, self.blocks.store, self._counted)

    def status(self, call: GrpcCall) -> CallHandler:
        self._check_open()
        self._counted["server_status_requests"] += 1
        return UnaryHandler(call, lambda message: write_status(self._read))

    def detail(self, call: GrpcCall) -> CallHandler:
        self._check_open()
        self._counted["server_status_details_requests"] += 1
        return UnaryHandler(call, lambda message: write_detail(self._read))

    # Events of the node, and the clock.

    def started(self) -> None:
        super().started()
        self._tick()

    def handle_notification(self, notification: Notification) -> None:
        if isinstance(notification, PersistedNotification):
            self.handle_lag()
        elif isinstance(notification, NodeFailure):
            for each in list(self._subscriptions):
                each.end(SubscribeStatus.ERROR, notification.reason)
        elif isinstance(notification, NodeStopping):
            self._stop_all()

    def handle_lag(self) -> None:
        for each in list(self._subscriptions):
            if each.feed is not None:
                each.feed.go_on()

    def _tick(self) -> None:
        for each in list(self._subscriptions):
            each.tick()
        self.context.call_later(self.plan_limits.tick_s, self._tick)

    def _stop_all(self) -> None:
        for each in list(self._subscriptions):
            if each.feed is not None:
                each.feed.stop("the node stops; subscribe again")

    def _check_open(self) -> None:
        if not self.blocks.store.is_open:
            raise refuse_not_ready()

    def begin(self, subscription: SubscribeCall) -> None:
        """Lists a subscription. Raises PlanRefused if there are too many."""
        most, origin = self.plan_limits.sessions_max, subscription.origin
        if len(self._subscriptions) >= most:
            raise PlanRefused(SubscribeStatus.ERROR, f"this node has {most} subscriptions; try later")
        limited = origin.usage.take("block_subscribe_sessions_max", origin.peer)
        if limited is not None:
            raise PlanRefused(SubscribeStatus.ERROR, limited)
        self._begun += 1
        self._subscriptions[subscription] = None

    def end(self, subscription: SubscribeCall, status: SubscribeStatus | None) -> None:
        """Forgets a subscription that has ended. status: None if the peer has left."""
        self._ended["LEFT" if status is None else status.name] += 1
        self._counted["subscriber_errors"] += status is SubscribeStatus.ERROR
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            subscription.origin.usage.give_back("block_subscribe_sessions_max")


class BlockMethod(NamedTuple):
    """A method of the door. open: makes the handler of a call. message_bytes_max: the largest request.

    rights: the caller needs one of these rights on the chain."""

    open: Callable[[GrpcServices, GrpcCall], CallHandler]
    message_bytes_max: int
    rights: Right


def block_methods(limits: GrpcLimits, services: Collection[str] = SERVICES.values()) -> dict[bytes, BlockMethod]:
    """Returns the methods of these services by their paths. services: values of SERVICES."""
    looks = Right.BLOCK_READ | Right.BLOCK_PUBLISH | Right.OPERATE
    made = {
        "publishBlockStream": BlockMethod(GrpcServices.publish, limits.message_bytes_max, Right.BLOCK_PUBLISH),
        "subscribeBlockStream": BlockMethod(GrpcServices.subscribe, ASK_BYTES_MAX, Right.BLOCK_READ),
        "getBlock": BlockMethod(GrpcServices.get_block, ASK_BYTES_MAX, Right.BLOCK_READ),
        "serverStatus": BlockMethod(GrpcServices.status, ASK_BYTES_MAX, looks),
        "serverStatusDetail": BlockMethod(GrpcServices.detail, ASK_BYTES_MAX, looks),
    }
    return {
        method.path.encode(): made[method.path.rpartition("/")[2]]
        for service in BLOCK_NODE.services()
        for method in service.methods
        if service.name in services
    }


class AboutCalls:
    """The calls of health and reflection at one address of the door, which need no right."""

    def __init__(self, is_serving: Callable[[], bool], paths: Iterable[bytes]) -> None:
        """is_serving: whether calls about blocks are answered now. paths: the block methods at this address."""
        self._is_serving = is_serving
        own = (
            f"{file.package}.{each.path}" for file in (HEALTH, REFLECTION, REFLECTION_ALPHA) for each in file.services()
        )
        self._services = {*own, *(path.decode().split("/")[1] for path in paths)}
        self._open: WeakSet[HealthCall | ReflectionCall] = WeakSet()

    def methods(self) -> dict[bytes, Callable[[GrpcCall], CallHandler]]:
        made: dict[bytes, Callable[[GrpcCall], HealthCall | ReflectionCall]] = {
            b"/grpc.health.v1.Health/Check": lambda call: HealthCall(call, self._serves, watches=False),
            b"/grpc.health.v1.Health/Watch": lambda call: HealthCall(call, self._serves, watches=True),
            **{
                next(own.methods()).path.encode(): partial(
                    ReflectionCall, files=FILES, own=own, services=self._services
                )
                for own in (REFLECTION, REFLECTION_ALPHA)
            },
        }
        return {path: partial(self._opened, make) for path, make in made.items()}

    def end(self) -> None:
        """Ends the open calls: a node that stops would wait for the peers that watch it."""
        for each in list(self._open):
            each.end()

    def _serves(self, service: str) -> bool | None:
        return self._is_serving() if not service or service in self._services else None

    def _opened(self, make: Callable[[GrpcCall], HealthCall | ReflectionCall], call: GrpcCall) -> CallHandler:
        handler = make(call)
        self._open.add(handler)
        return handler


def origin_of(call: GrpcCall) -> Origin:
    origin = call.peer
    assert isinstance(origin, Origin), "the door describes each peer by its origin"
    return origin
