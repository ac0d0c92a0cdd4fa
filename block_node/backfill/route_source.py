"""The interface of a source of blocks (`BlockSource`: another node that reports which blocks it has, and sends blocks),
and the source over an Ockam route: a node with the services `block_status` and `block_subscribe`.

A source calls its callbacks in the trio thread, and only after the call that started the request has returned. Over a
route, each request is a worker with an address of its own. It confirms received items at once, so the source node never
waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from block_node.events import ITEM_OVERHEAD_BYTES
from block_node.item_splitting import ItemJoiner
from block_node.persist.ranges import BlockRanges
from block_node.persist.schema import NUMBER_MAX
from block_node.protocol_reading import (
    GET,
    STATUS,
    SUBSCRIBE,
    BlockPart,
    GetBlock,
    GetStatus,
    Received,
    StatusRequest,
    Subscribe,
    Subscribed,
    SubscribedBlockEnd,
    SubscribedItems,
    SubscribePacked,
    SubscribeRequest,
    SubscribeStatus,
    SubscriptionEnded,
    Unsubscribe,
)
from block_node.read.packing import unpacked
from ockam.actors.address import Route, local
from ockam.actors.asker import Answers, Asker, Unanswered, demand_of_answer, is_closed
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import NEVER, Worker
from ockam.identity.rules.rights import Demand
from ockam.protocol import ERROR, ProtocolError

ANSWER_S_MAX = 10.0
"""The longest wait for the first answer. Messages to an unreachable source node are lost without an error."""
LOOK_S = 1.0
LACKING = frozenset(
    {SubscribeStatus.NOT_AVAILABLE, SubscribeStatus.INVALID_START_BLOCK, SubscribeStatus.INVALID_END_BLOCK}
)
"""The reasons that mean that the source node does not have the blocks that it claimed."""

StatusDone = Callable[[BlockRanges | None, str], None]
"""The callback of `ask_status`: the blocks of the source node, or None and the reason of the failure."""


RootDone = Callable[[bytes | None, str], None]
"""The callback of `ask_root`: the root hash, or None and the reason of the failure."""


class FetchListener(Protocol):
    """Receives the blocks of one request. No method is called after `ended`."""

    def grew(self, size_bytes: int) -> None: ...

    def block(self, number: int, items: list[bytes]) -> None: ...

    def ended(self, reason: str, *, lied: bool) -> None:
        """The request has failed. lied: the source node lacks blocks that it claimed, or sent invalid messages."""
        ...


class RunningFetch(Protocol):
    def cancel(self) -> None:
        """Cancels the request: its listener is not called any more. Safe to repeat."""
        ...


class BlockSource(Protocol):
    """The interface of a source of blocks. `RouteSource` uses an Ockam route, `GrpcSource` the gRPC block services."""

    def ask_status(self, on_done: StatusDone) -> None: ...

    def ask_root(self, number: int, size_bytes: int, on_done: RootDone) -> None:
        """Asks for the root hash of a block. size_bytes: its size if it is stored here, else 0. With the right size,
        the source sends no bytes of the block."""
        ...

    def fetch(self, first: int, last: int, listener: FetchListener) -> RunningFetch: ...

    def close(self) -> None:
        """Ends the connections that this source has opened for itself. The caller sends it no further request."""
        ...


WINDOW_BYTES = 4 * 1024 * 1024
RECEIVED_EVERY_BYTES = 1024 * 1024
"""The received bytes after which the next `Received` permits the source node to send more."""
REQUEST_ID = 1

T = TypeVar("T")


class RouteSource:
    """A source node at the end of an Ockam route. route: the hops to the node, without a service.

    silence_s_max: the longest wait for a message."""

    def __init__(self, node: Node, route: Route, new_id: Callable[[], str], *, silence_s_max: float) -> None:
        self._node = node
        self._route = route
        self._new_id = new_id
        self._silence_s_max = silence_s_max

    def ask_status(self, on_done: StatusDone) -> None:
        self._ask("block_status", STATUS.encode_request(StatusRequest(REQUEST_ID, True)), _read_ranges, on_done)

    def ask_root(self, number: int, size_bytes: int, on_done: RootDone) -> None:
        # The answer has the root hash, and the bytes of the block beyond `size_bytes`: none if the sizes are equal.
        request = GetBlock(REQUEST_ID, number, False, size_bytes)

        def answered(part: BlockPart | None, reason: str) -> None:
            if part is not None and part.status is GetStatus.INVALID_REQUEST and size_bytes:
                # The block is shorter at the source, since its proofs can differ: ask with the offset 0.
                self.ask_root(number, 0, on_done)
            elif part is not None and part.status is not GetStatus.SUCCESS:
                on_done(None, f"block_get: {part.status.name}")
            else:
                on_done(None if part is None else part.root, reason)

        self._ask("block_get", GET.encode_request(request), GET.decode_response, answered)

    def _ask(
        self, service: str, payload: bytes, read: Callable[[bytes], T], on_done: Callable[[T | None, str], None]
    ) -> None:
        address = local("BF_" + self._new_id())
        asker = Asker(self._node, self._route[0])
        self._node.register([address], lambda: asker, restarts=NEVER)

        def answered(answers: Answers) -> None:
            self._node.unregister(address)
            if isinstance(answers, Unanswered):
                silent = f"no answer to {service}"
                on_done(None, f"unreachable: {silent if answers is Unanswered.SILENT else answers.value.format('it')}")
                return
            result, reason = None, ""
            try:
                if ERROR.is_in(answers[0]):
                    reason = f"refused: {ERROR.decode_response(answers[0]).reason}"
                else:
                    result = read(answers[0])
            except ProtocolError as error:
                reason = str(error)
            on_done(result, reason)

        # The caller gets no result before its own call has returned.
        patience_s = min(ANSWER_S_MAX, self._silence_s_max)
        asker.context.call_later(0, lambda: asker.ask(self._to(service), payload, answered, patience_s))

    def fetch(self, first: int, last: int, listener: FetchListener) -> Fetching:
        address = local("BF_" + self._new_id())
        fetching = Fetching(self._node, self._to("block_subscribe"), first, last, listener, self._silence_s_max)
        self._node.register([address], lambda: fetching)
        return fetching

    def close(self) -> None:
        # The source has opened no connection: it uses the connections of the node.
        pass

    def _to(self, service: str) -> Route:
        return (*self._route, local(service))


class Fetching(Worker):
    """Subscribes to the blocks from `first` to `last`, and passes them to its listener.

    Invariant: `_joiner` has the received items of block `_next`.
    """

    def __init__(
        self,
        node: Node,
        route: Route,
        first: int,
        last: int,
        listener: FetchListener,
        silence_s_max: float,
    ) -> None:
        self._node = node
        self._route = route
        self._next, self._last = first, last
        self._listener: FetchListener | None = listener
        self._silence_s_max = silence_s_max
        self._way: Route = ()
        self._sequence = 0
        self._joiner = ItemJoiner()
        self._taken_bytes = self._acknowledged_bytes = 0
        self._packs = True
        self._silence_s = 0.0
        self._look_s = min(LOOK_S, silence_s_max / 4)

    def started(self) -> None:
        self.context.call_later(0, self._begin)
        self.context.call_later(self._look_s, self._watch)

    def stopped(self) -> None:
        self._end("the fetch failed")

    def cancel(self) -> None:
        if self._listener is not None:
            self._listener = None
            self._leave()

    def demand(self, message: Message) -> Demand | None:
        return demand_of_answer(message, self._route[0])

    def handle(self, message: Message) -> None:
        self._silence_s = 0.0
        try:
            # An error can come instead of any answer.
            if ERROR.is_in(message.payload):
                if self._packs and not self._way and self._listener is not None:
                    # The node may be of an earlier version that cannot pack items: repeat the request without packing.
                    # The next fetch asks for packed items again, since the error may be temporary.
                    self._packs = False
                    self._begin()
                    return
                self._end(f"refused: {ERROR.decode_response(message.payload).reason}")
                return
            response = SUBSCRIBE.decode_response(message.payload)
            # The subscription has an address of its own, to which confirmations go.
            if isinstance(response, Subscribed):
                self._way = message.return_route
            elif self._listener is None:
                # All blocks have arrived, and this message ends the subscription.
                self._node.unregister(self.context.address)
            elif response.sequence != self._sequence:
                raise ProtocolError(f"message {self._sequence} of the subscription was lost")
            else:
                # All further messages are numbered: a missing number shows that a message was lost.
                self._sequence += 1
                response = unpacked(response)
                if isinstance(response, SubscribedItems):
                    self._take(response)
                elif isinstance(response, SubscribedBlockEnd):
                    self._end_block(response.block_number)
                elif isinstance(response, SubscriptionEnded):
                    lied = response.status in LACKING or response.status is SubscribeStatus.SUCCESS
                    self._end(f"{response.status.name}: {response.reason}", lied=lied)
                else:
                    raise ProtocolError("a verified block cannot be withdrawn")
        except ProtocolError as error:
            self._end(str(error), lied=True)

    def _begin(self) -> None:
        request = Subscribe(REQUEST_ID, self._next, self._last, False, WINDOW_BYTES)
        if not self._send(self._route, SubscribePacked(request) if self._packs else request):
            self._end("unreachable: there is no way to it")

    def _take(self, message: SubscribedItems) -> None:
        if message.block_number != self._next:
            raise ProtocolError(f"block {message.block_number} came instead of block {self._next}")
        # Pieces are joined here: a source node splits items larger than a frame.
        size_bytes = sum(map(len, message.items))
        self._joiner.add(message.items, message.piece)
        # A confirmation follows each megabyte, so that the source node never waits.
        self._taken_bytes += size_bytes
        if self._taken_bytes - self._acknowledged_bytes >= RECEIVED_EVERY_BYTES:
            self._acknowledged_bytes = self._taken_bytes
            self._send(self._way, Received(REQUEST_ID, self._taken_bytes))
        if self._listener is not None:
            self._listener.grew(size_bytes + ITEM_OVERHEAD_BYTES * len(message.items))

    def _end_block(self, number: int) -> None:
        if number != self._next or not self._joiner.items or self._joiner.is_in_item:
            raise ProtocolError(f"block {number} ended, and block {self._next} had not come")
        items = self._joiner.take()
        self._next += 1
        listener = self._listener
        if self._next > self._last:
            self._listener = None
        if listener is not None:
            listener.block(number, items)

    def _watch(self) -> None:
        if self._listener is None:
            self._node.unregister(self.context.address)
            return
        self._silence_s += self._look_s
        if is_closed(self._node, self._way):
            self._end("the connection is gone")
        elif not self._way and self._silence_s >= ANSWER_S_MAX:
            self._end("unreachable: no answer to block_subscribe")
        elif self._silence_s > self._silence_s_max:
            self._end(f"silent for {self._silence_s_max:g} s")
        else:
            self.context.call_later(self._look_s, self._watch)

    def _end(self, reason: str, *, lied: bool = False) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._leave()
            listener.ended(reason, lied=lied)

    def _leave(self) -> None:
        if self._way:
            self._send(self._way, Unsubscribe(REQUEST_ID))
        self._node.unregister(self.context.address)

    def _send(self, route: Route, request: SubscribeRequest) -> bool:
        return self.context.send(Message(route, (self.context.address,), SUBSCRIBE.encode_request(request)))


def _read_ranges(payload: bytes) -> BlockRanges:
    """Returns the blocks that a source node claims. The highest unsigned number stands for an unknown block, so a range
    above `NUMBER_MAX` is left out. Raises ProtocolError for other invalid ranges."""
    detail = STATUS.decode_response(payload).detail
    if detail is None:
        raise ProtocolError("block_status has no detail")
    found = BlockRanges()
    for first, last in sorted((each.first_block, each.last_block) for each in detail.available):
        if first > last:
            raise ProtocolError(f"a range from block {first} to {last}")
        if first <= NUMBER_MAX < last:
            raise ProtocolError(f"a range up to block {last}; the highest number is {NUMBER_MAX}")
        if first <= NUMBER_MAX:
            found.add(first, last)
    return found
