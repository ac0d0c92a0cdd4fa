"""One subscription as a worker: it sends its subscriber the blocks of a range in order, each block once.

All blocks are read from the store, so none is missed between history and live blocks. A subscription in the early mode
also sends items before they are verified, once it has sent all earlier blocks (`early_event`). `subscription_plan`
decides the meaning of a request.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

import msgspec

from block_node.events import BlockBegun, BlockDropped, ItemEvent, ItemsReceived
from block_node.item_splitting import HEAD_BYTES_MIN, ItemBatch, ItemSplitter, NotABlock, split_items, split_piece
from block_node.persist.errors import BlockNumberUnknown
from block_node.persist.operations import PLACES_PER_READ, ReadBlocks, StoredParts
from block_node.persist.store import ChainStore
from block_node.protocol import Piece
from block_node.protocol_reading import (
    SUBSCRIBE,
    Received,
    Subscribed,
    SubscribedBlockEnd,
    SubscribedBlockWithdrawn,
    SubscribedItems,
    SubscribeResponse,
    SubscribeStatus,
    SubscriptionEnded,
    Unsubscribe,
)
from block_node.read.packing import packed
from block_node.read.subscription_plan import SubscribeLimits, SubscriptionPlan
from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError, error_payload
from stream_storage.errors import DatabaseCorrupt

CHUNK_BYTES = 1024 * 1024
"""The maximum number of bytes of items in one message, as the reference block node's `maxChunkSizeBytes`."""
READ_BYTES = 1024 * 1024
"""The maximum number of bytes in one read. The memory of a subscription holds at most one read."""
MESSAGE_OVERHEAD_BYTES = 512
"""The bytes of a frame that a message needs in addition to its items: names, numbers, routes and sizes."""


class FeedStage(enum.Enum):
    """READING: it reads from the store. WAITING: it waits for a block that is not stored. EARLY: it sends the items of
    a block before the block is verified. ENDED: it sends nothing more."""

    READING = "reading"
    WAITING = "waiting"
    EARLY = "early"
    ENDED = "ended"


class SubscribeSession(Worker):
    """The worker of one subscription. Its own address accepts `Received` and `Unsubscribe`.

    next_block: the lowest block that was not sent completely; None while the first block is not known.

    Invariant: `_outgoing` has the items that were read and not sent, beginning with block `next_block`. While it is not
    empty, no read is in progress.
    """

    def __init__(
        self,
        request: Message,
        request_id: int,
        plan: SubscriptionPlan,
        window_bytes: int,
        store: ChainStore,
        limits: SubscribeLimits,
        now_s: Callable[[], float],
        on_end: Callable[[SubscribeSession, SubscribeStatus | None], None],
        *,
        packs: bool = False,
    ) -> None:
        self._request = request
        self._request_id = request_id
        self._plan = plan
        self._window_bytes = min(max(window_bytes, limits.window_bytes_min), limits.window_bytes_max)
        self._store = store
        self._limits = limits
        self._now_s = now_s
        self._on_end = on_end
        self._packs = packs
        self._began_s = self._moved_s = now_s()
        self._sequence = 0
        self._sent_bytes = self._taken_bytes = 0
        self._part = 0
        self._splitter: ItemSplitter | None = None
        self._outgoing: deque[ItemBatch | SubscribedBlockEnd] = deque()
        self._reading = False
        self._source_ended = False
        self._early_attempt = 0
        self._chunk_bytes = _chunk_bytes(request)
        self.stage = FeedStage.WAITING
        self.next_block = plan.start

    @property
    def is_early(self) -> bool:
        return self._plan.early

    @property
    def peer(self) -> Address:
        """The first address of the route back. If it is not registered, the subscriber has disconnected."""
        return self._request.return_route[0]

    def demand(self, message: Message) -> Demand | None:
        """Only the subscriber may confirm and end its subscription, through the connection that began it."""
        return Demand(Right.BLOCK_READ, self._store.chain) if message.return_route[:1] == (self.peer,) else None

    def started(self) -> None:
        self._respond(Subscribed(self._request_id, self.next_block))
        self.go_on()

    def handle(self, message: Message) -> None:
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
        # Items that were read come first, and a running read continues by itself.
        if self.stage is FeedStage.ENDED or not self._send_waiting() or self._reading:
            return
        if self._plan.end is not None and self.next_block is not None and self.next_block > self._plan.end:
            self.end(SubscribeStatus.SUCCESS, "")
        elif self._begins_too_high:
            self.end(SubscribeStatus.NOT_AVAILABLE, f"no block up to {self._plan.end} is here")
        # An early block comes from the publisher's items; reading continues after its end.
        elif self.stage is not FeedStage.EARLY:
            if self._find_next():
                self._read()
            else:
                self._wait()

    def source_ended(self) -> None:
        """Notes that no publisher is connected: the subscription ends after all stored blocks are sent."""
        self._source_ended = True
        self.go_on()

    def source_began(self) -> None:
        self._source_ended = False

    def early_event(self, event: ItemEvent) -> None:
        """Handles an event of the block that the node receives. Called only in the early mode."""
        if isinstance(event, BlockBegun):
            # Without a first block, the subscription begins with the next new one.
            if self.next_block is None and self._plan.start is None:
                self.next_block = event.block_number
            # Only the next block is sent early: the subscriber has all earlier ones.
            if self.stage is FeedStage.WAITING and event.block_number == self.next_block:
                self.stage, self._early_attempt = FeedStage.EARLY, event.attempt
        elif self.stage is FeedStage.EARLY and event.attempt == self._early_attempt:
            if isinstance(event, ItemsReceived):
                self._pass_on(event)
            elif isinstance(event, BlockDropped):
                self._withdraw()
                self.go_on()

    def early_verified(self, attempt: int, root: bytes | None) -> None:
        """Handles the verification result of the block that is sent early. `root` is None if it failed."""
        if self.stage is not FeedStage.EARLY or attempt != self._early_attempt or self.next_block is None:
            return
        if root is None:
            self._withdraw()
            self.go_on()
            return
        self._respond(SubscribedBlockEnd(self._request_id, self._next_sequence(), self.next_block, root))
        self.next_block += 1
        self.stage = FeedStage.WAITING
        self.go_on()

    def tick(self) -> None:
        """Ends the subscription at a time limit: a slow subscriber, a missing block, or a long subscription."""
        now_s, limits = self._now_s(), self._limits
        # A slow subscriber is ended before anything else, because nothing can be sent to it.
        if not self._has_room:
            if now_s - self._moved_s >= limits.slow_s_max:
                self.end(SubscribeStatus.TOO_SLOW, f"nothing was taken for {limits.slow_s_max:g} s")
            return
        # A subscription that lasts too long ends between two blocks only.
        if limits.duration_s_max is not None and now_s - self._began_s >= limits.duration_s_max and not self._in_block:
            self.end(SubscribeStatus.SUCCESS, f"a subscription lasts {limits.duration_s_max:g} s")
        elif self.stage is FeedStage.WAITING and now_s - self._moved_s >= limits.missing_s_max and self._is_missing:
            self.end(SubscribeStatus.NOT_AVAILABLE, f"block {self.next_block} is missing here, and did not come")
        self.go_on()

    def end(self, status: SubscribeStatus, reason: str) -> None:
        """Ends the subscription with a last message. Safe to repeat."""
        if self.stage is not FeedStage.ENDED:
            self._respond(SubscriptionEnded(self._request_id, self._next_sequence(), status, reason))
            self.leave(status)

    def leave(self, status: SubscribeStatus | None = None) -> None:
        """Ends the subscription without a message. Safe to repeat. `status` is counted; None if the subscriber left."""
        if self.stage is not FeedStage.ENDED:
            self.stage = FeedStage.ENDED
            self._outgoing.clear()
            self._on_end(self, status)

    def stopped(self) -> None:
        self.end(SubscribeStatus.ERROR, "the subscription failed; subscribe again")

    @property
    def _has_room(self) -> bool:
        in_window = self._sent_bytes - self._taken_bytes < self._window_bytes
        return in_window and not self._request.origin.is_behind(self._limits.window_bytes_max - 1)

    @property
    def _in_block(self) -> bool:
        """Whether items of the next block were read or sent, but the end of that block was not sent."""
        return self._part > 0 or bool(self._outgoing) or self.stage is FeedStage.EARLY

    @property
    def _begins_too_high(self) -> bool:
        """Whether the node was empty and then stored a first block above the end of the requested range."""
        first, end = self._store.available.first, self._plan.end
        return self.next_block is None and first is not None and end is not None and first > end

    @property
    def _is_missing(self) -> bool:
        last = self._store.available.last
        return self.next_block is not None and last is not None and self.next_block < last

    def _received(self, size_bytes: int) -> None:
        if not self._taken_bytes <= size_bytes <= self._sent_bytes:
            raise ProtocolError(f"{size_bytes} bytes cannot have been taken; {self._sent_bytes} were sent")
        self._taken_bytes = size_bytes
        self._moved_s = self._now_s()
        self.go_on()

    def _find_next(self) -> bool:
        """Whether the next block is stored. Sets `next_block` if it was not known."""
        available = self._store.available
        if self.next_block is None:
            self.next_block = available.last if self._plan.end is None else available.first
        return self.next_block is not None and self.next_block in available

    def _wait(self) -> None:
        first = self._store.available.first
        number = self.next_block
        # Retention has deleted the block. A damaged one may still come again.
        if number is not None and first is not None and number < first and number not in self._store.damaged:
            reason = f"block {self.next_block} is not kept any more; the first one is {first}"
            self.end(SubscribeStatus.NOT_AVAILABLE, reason)
        elif self._source_ended:
            self.end(SubscribeStatus.SOURCE_ERROR, "the last source of blocks has ended; subscribe again to wait")
        elif self.stage is not FeedStage.WAITING:
            self.stage = FeedStage.WAITING
            self._moved_s = self._now_s()

    def _read(self) -> None:
        assert self.next_block is not None, "the next block is known before it is read"
        self.stage, self._reading = FeedStage.READING, True
        end = self._plan.end
        blocks = PLACES_PER_READ if end is None else min(PLACES_PER_READ, end - self.next_block + 1)
        read = self.context.guard(self._has_read)
        self._store.read(self.next_block, self._part, READ_BYTES, read, blocks=blocks)

    def _has_read(self, operation: ReadBlocks) -> None:
        self._reading = False
        if self.stage is FeedStage.ENDED:
            return
        if isinstance(operation.error, BlockNumberUnknown) or (
            isinstance(operation.error, DatabaseCorrupt) and not self._in_block
        ):
            # A damaged block is missing until it comes again. If a part of it was sent, the subscription must end.
            self.stage = FeedStage.WAITING
            self._wait()
            return
        if operation.error is not None:
            self.end(SubscribeStatus.ERROR, f"block {self.next_block} cannot be read: {operation.error}")
            return
        try:
            for part in operation.found:
                self._split(part)
        except NotABlock as error:
            self.end(SubscribeStatus.ERROR, f"block {self.next_block} is damaged: {error}")
            return
        self.go_on()

    def _split(self, found: StoredParts) -> None:
        # A block can come in several reads, so the splitter lives until its end.
        if self._splitter is None:
            self._splitter = ItemSplitter(self._chunk_bytes)
        for data in found.parts:
            self._outgoing += self._splitter.feed(data)
        self._part = found.next_part
        # The number of this message in the subscription is set when the message is sent.
        if found.is_last:
            self._outgoing += self._splitter.finish()
            place = found.place
            self._outgoing.append(SubscribedBlockEnd(self._request_id, 0, place.number, place.root))
            self._splitter, self._part = None, 0

    def _send_waiting(self) -> bool:
        """Sends read items while the window for unconfirmed bytes has room. Returns whether all were sent."""
        while self._outgoing:
            chunk = self._outgoing[0]
            if isinstance(chunk, SubscribedBlockEnd):
                self._respond(msgspec.structs.replace(chunk, sequence=self._next_sequence()))
                self.next_block = chunk.block_number + 1
            elif self._has_room:
                self._send_items(chunk, verified=True)
            else:
                return False
            self._outgoing.popleft()
        return True

    def _pass_on(self, event: ItemsReceived) -> None:
        """Sends items of an unverified block. Without room, it is withdrawn, and sent again when it is stored."""
        if not self._has_room:
            self._withdraw()
            return
        if event.piece is Piece.WHOLE:
            chunks = split_items(event.items, self._chunk_bytes)
        else:
            chunks = split_piece(event.items[0], event.piece, self._chunk_bytes)
        for chunk in chunks:
            self._send_items(chunk, verified=False)

    def _withdraw(self) -> None:
        self.stage = FeedStage.WAITING
        if self.next_block is not None:
            self._respond(SubscribedBlockWithdrawn(self._request_id, self._next_sequence(), self.next_block))

    def _send_items(self, chunk: ItemBatch, *, verified: bool) -> None:
        assert self.next_block is not None, "items are of a block"
        # The time limit for a slow subscriber begins with the first unconfirmed byte.
        if not self._sent_bytes - self._taken_bytes:
            self._moved_s = self._now_s()
        self._sent_bytes += chunk.size_bytes
        sequence = self._next_sequence()
        items = SubscribedItems(self._request_id, sequence, self.next_block, verified, chunk.items, chunk.piece)
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
