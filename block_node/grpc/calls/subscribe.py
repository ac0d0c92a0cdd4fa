"""`subscribeBlockStream`: sends verified and stored blocks, whole and in order, each followed by its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from block_node.blocks.errors import BlockFormatError
from block_node.grpc.http2.handler import GrpcCall, SingleRequest, guarded
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import NO_BLOCK, items_prefix, read_message, write_message
from block_node.grpc.set_cutter import SetCutter, SetPart
from block_node.persist.operations import StoredParts
from block_node.protocol_reading import Subscribe, SubscribeStatus
from block_node.read.feed import BlockFeed
from block_node.read.subscription_plan import PlanRefused, plan_subscription
from ockam.actors.message import Origin

if TYPE_CHECKING:
    from block_node.grpc.calls.services import GrpcServices

logger = structlog.get_logger(__name__)


class SubscribeCall(SingleRequest):
    """One subscriber. Invariant: `_is_full` is true exactly while the call has no room."""

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
