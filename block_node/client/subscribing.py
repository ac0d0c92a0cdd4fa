"""Subscription: an iterator over the events of blocks, from one node after another. It also defines the events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self, TypeAlias

import msgspec

from block_node.client.errors import DamagedAnswer, SubscriptionRefused
from block_node.protocol import Piece
from block_node.protocol_reading import (
    STATUS,
    SUBSCRIBE,
    Received,
    StatusRequest,
    Subscribe,
    Subscribed,
    SubscribedBlockEnd,
    SubscribedBlockWithdrawn,
    SubscribedItems,
    SubscribePacked,
    SubscribeStatus,
    SubscriptionEnded,
    UnpackedResponse,
    Unsubscribe,
)
from block_node.read.packing import unpacked
from ockam.protocol import ProtocolError
from stream_client.client import StreamClient
from stream_client.core.pushes import PendingResult
from stream_client.errors import (
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_client.session import Conversation
from stream_client.shell.base_shell import CHANCE, Backoff, Reconnect

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""The default number of bytes that a node may send to a subscription before the client has confirmed them, 8 MiB."""
RECEIVED_EVERY: Final = 4
"""How often the received bytes are confirmed within a window, so that the node can send without a pause."""
PASSING: Final = (
    SubscriptionRefused, ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer, DamagedAnswer
)  # fmt: skip
"""The errors after which another connection or another node can succeed."""


class ItemsArrived(msgspec.Struct, frozen=True, gc=False):
    """Items of a block have arrived, or one piece of a large item. verified: False only in the early mode."""

    block_number: int
    items: list[bytes]
    piece: Piece
    verified: bool


class BlockArrived(msgspec.Struct, frozen=True):
    """All items of the block have arrived, and the block is verified."""

    block_number: int
    root: bytes


class BlockWithdrawn(msgspec.Struct, frozen=True):
    """The program must discard the received items of the block. The block was invalid or not completed, or the
    subscription failed in the middle of it. The block can arrive again, from its beginning."""

    block_number: int


AboutBlock: TypeAlias = SubscribedItems | SubscribedBlockEnd | SubscribedBlockWithdrawn
SubscriptionEvent: TypeAlias = ItemsArrived | BlockArrived | BlockWithdrawn


class ReceivedBlock(msgspec.Struct, frozen=True):
    """A whole, verified block, with its serialized items in order."""

    number: int
    root: bytes
    items: list[bytes]


class _Source:
    """A subscription at one node, from its request to its end or `leave`."""

    def __init__(self, conversation: Conversation, request: Subscribe, answer_s_max: float) -> None:
        self.end_reason = ""
        self._conversation = conversation
        self._request = request
        self._answer_s_max = answer_s_max
        self._is_subscribed = False
        self._sequence = 0
        self._taken_bytes = self._acknowledged_bytes = 0

    def leave(self) -> None:
        """Ends the conversation. A node that still has the subscription is asked to send nothing more."""
        if self._is_subscribed:
            self._is_subscribed = False
            with suppress(ClientError):
                self._conversation.send_nowait(SUBSCRIBE.encode_request(Unsubscribe(1)))
        self._conversation.close()

    async def begin(self, *, compress: bool) -> int | None:
        """Subscribes at the node. Returns the number of the first block, or None if the node has no blocks."""
        await self._conversation.send(self._opening(packs=compress))
        try:
            payload = await self._receive(self._answer_s_max)
        except RequestRefused:
            if not compress:
                raise
            # An older node cannot compress, so the client subscribes without compression.
            await self._conversation.send(self._opening(packs=False))
            payload = await self._receive(self._answer_s_max)
        return self._take_begin(payload)

    async def next(self) -> AboutBlock | None:
        """Returns the next message about a block, None after the last one. Raises ClientError."""
        confirmation = self._confirmation()
        if confirmation is not None:
            await self._conversation.send(confirmation)
        return self._take(await self._receive(None))

    async def _receive(self, timeout_s: float | None) -> bytes:
        payload = await self._conversation.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"the node has not answered for {self._answer_s_max:g} s")
        return payload

    def _opening(self, *, packs: bool) -> bytes:
        return SUBSCRIBE.encode_request(SubscribePacked(self._request) if packs else self._request)

    def _confirmation(self) -> bytes | None:
        # The node stops sending when a whole window of bytes is unconfirmed. The client confirms a quarter of the
        # window at a time, because one message for each read would cost too much.
        if (self._taken_bytes - self._acknowledged_bytes) * RECEIVED_EVERY < self._request.window_bytes:
            return None
        self._acknowledged_bytes = self._taken_bytes
        return SUBSCRIBE.encode_request(Received(1, self._taken_bytes))

    def _take_begin(self, payload: bytes) -> int | None:
        """Reads the first answer. Returns the number of the first block, or None if the node has no blocks."""
        response = _decode(payload)
        if isinstance(response, SubscriptionEnded):
            raise SubscriptionRefused(response.status, response.reason)
        if not isinstance(response, Subscribed):
            raise UnexpectedAnswer(f"not the beginning of a subscription: {type(response).__name__}")
        self._is_subscribed = True
        return response.start_block

    def _take(self, payload: bytes) -> AboutBlock | None:
        """Reads a later answer. Returns None for the end of the subscription."""
        response = _decode(payload)
        if isinstance(response, Subscribed):
            raise UnexpectedAnswer("a second beginning of one subscription")
        # A gap in the sequence means that items of a block are lost.
        if response.sequence != self._sequence:
            raise DamagedAnswer(f"message {self._sequence} of the subscription is missing")
        self._sequence += 1
        if isinstance(response, SubscriptionEnded):
            self._is_subscribed = False
            self.end_reason = response.reason
            if response.status is not SubscribeStatus.SUCCESS:
                raise SubscriptionRefused(response.status, response.reason)
            return None
        if isinstance(response, SubscribedItems):
            self._taken_bytes += sum(map(len, response.items))
        return response


class Subscription:
    """An iterator over the events of the requested blocks. It opens further connections after failures.

    connections: the number of connections used so far. The arguments are those of `BlockClient.subscribe_events`.
    """

    def __init__(
        self,
        clients: Sequence[StreamClient],
        start: int | None,
        end: int | None,
        *,
        early: bool,
        window_bytes: int,
        answer_s_max: float,
        reconnect: Reconnect,
        wait: bool,
        compress: bool = False,
    ) -> None:
        self.connections = 0
        self._clients = clients
        self._end = end
        self._early = early
        self._window_bytes = window_bytes
        self._answer_s_max = answer_s_max
        self._backoff = Backoff(reconnect, CHANCE)
        self._give_up_s = reconnect.give_up_s
        self._wait = wait
        self._compress = compress
        self._next = start
        self._begun: int | None = None
        self._found_empty: set[str] = set()
        self._progress_s = self._now_s()
        self._failure: ClientError | None = None
        self._is_over = False
        self._at = 0
        self._source: _Source | None = None
        self._problem: ClientError | None = None

    async def begin(self) -> None:
        """Subscribes now, so that no block from this moment on is missed. If this fails, the iteration tries again."""
        try:
            self._source = await self._subscribe(self._clients[0])
        except ClientError as error:
            self._problem = error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SubscriptionEvent:
        """Returns the next event. Raises at once AccessDenied, or SubscriptionRefused if no node can send the blocks.
        Raises other errors, such as NodeUnreachable, after `Reconnect.give_up_s` seconds without a block."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                raise StopAsyncIteration
            # One round either returns an event, ends the iteration, or learns why this node cannot go on.
            try:
                if self._problem is not None:
                    problem, self._problem = self._problem, None
                    raise problem
                if self._source is None:
                    self._source = await self._subscribe(self._clients[self._at])
                response = await self._source.next()
                if response is not None:
                    return self._event(response)
                if not self._has_all:
                    # A node may also end a subscription because the subscription has lasted very long.
                    raise SubscriptionRefused(SubscribeStatus.SUCCESS, self._source.end_reason)
                self._is_over = True
            except PASSING as error:
                withdrawn = self._end_source(error)
                if withdrawn is not None:
                    return withdrawn
                if self._failure is None:
                    await self._next_node()
            except ClientError as error:
                self._drop_source()
                self._failure = error

    def close(self) -> None:
        """Ends the subscription, so that the node sends nothing more. Safe to repeat."""
        self._is_over = True
        self._drop_source()
        self._clients[self._at].session.shell.exchange_nowait()

    async def _subscribe(self, client: StreamClient) -> _Source:
        """Subscribes at this node, beginning with the next block. Raises ClientError."""
        start = await self._find_start(client)
        conversation = client.converse("block_subscribe")
        try:
            await conversation.opened(self._patience_s())
            self.connections += 1
            request = Subscribe(1, start, self._end, self._early, self._window_bytes)
            source = _Source(conversation, request, self._answer_s_max)
            self._note_start(client.address, await source.begin(compress=self._compress), start)
        except BaseException:
            conversation.close()
            raise
        return source

    async def _find_start(self, client: StreamClient) -> int | None:
        """Returns the first block to request; None means the next new block. A node that was empty is asked again."""
        if self._next is not None or client.address not in self._found_empty:
            return self._next
        conversation = client.converse("block_status")
        try:
            await conversation.opened(self._patience_s())
            status = await conversation.ask(STATUS, StatusRequest(1, False), self._answer_s_max)
        finally:
            conversation.close()
        return status.first_available

    async def _next_node(self) -> None:
        self._at = (self._at + 1) % len(self._clients)
        if self._at == 0:
            await self._clients[0].session.shell.wait(PendingResult(), self._backoff.next_delay_s())

    @property
    def _has_all(self) -> bool:
        return self._end is not None and self._next is not None and self._next > self._end

    def _event(self, response: AboutBlock) -> SubscriptionEvent:
        number = response.block_number
        if isinstance(response, SubscribedItems):
            self._begun = number
            self._begin_at(number)
            return ItemsArrived(number, response.items, response.piece, response.verified)
        self._begun = None
        if isinstance(response, SubscribedBlockWithdrawn):
            return BlockWithdrawn(number)
        self._next = number + 1
        self._progress_s = self._now_s()
        self._backoff.succeeded()
        return BlockArrived(number, response.root)

    def _end_source(self, problem: ClientError) -> BlockWithdrawn | None:
        """Leaves the node after a failure. Fails if no other attempt can help, or after `give_up_s` seconds."""
        self._drop_source()
        waited_s = self._now_s() - self._progress_s
        final = isinstance(problem, SubscriptionRefused) and (
            not problem.retriable
            or (not self._wait and len(self._clients) == 1 and problem.status is not SubscribeStatus.SUCCESS)
        )
        if final or (self._give_up_s is not None and waited_s >= self._give_up_s):
            self._failure = problem
        withdrawn, self._begun = self._begun, None
        return None if withdrawn is None else BlockWithdrawn(withdrawn)

    def _drop_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.leave()

    def _note_start(self, node: str, number: int | None, asked: int | None) -> None:
        """Notes the first block at this node. Raises DamagedAnswer if a node that was empty has just got blocks."""
        if number is None:
            self._found_empty.add(node)
        elif asked is None and node in self._found_empty and self._next is None:
            raise DamagedAnswer(f"blocks came to {node} while it was asked for them; asking again")
        self._begin_at(number)

    def _begin_at(self, number: int | None) -> None:
        if self._next is None:
            self._next = number

    def _patience_s(self) -> float | None:
        """Returns the longest wait for a connection in seconds, so that the iteration fails in time. None: no limit."""
        if self._give_up_s is None:
            return None
        return max(0.0, self._progress_s + self._give_up_s - self._now_s())

    def _now_s(self) -> float:
        return self._clients[0].session.now_s()


def _decode(payload: bytes) -> UnpackedResponse:
    try:
        return unpacked(SUBSCRIBE.decode_response(payload))
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a {SUBSCRIBE.name}: {error}") from error
