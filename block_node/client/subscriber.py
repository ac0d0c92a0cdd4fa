"""Subscription: receives blocks from one of several nodes and changes the node when one fails.

Each block arrives whole and once. A subscription uses the connections of the clients and reads only when its program
asks for the next event.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from block_node.client.errors import DamagedAnswer, SubscriptionRefused
from block_node.client.events import BlockArrived, BlockWithdrawn, ItemsArrived, SubscriptionEvent
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
    SubscribeRequest,
    SubscribeStatus,
    SubscriptionEnded,
    UnpackedResponse,
    Unsubscribe,
)
from block_node.read.packing import unpacked
from ockam.protocol import ProtocolError
from stream_client.client import StreamClient
from stream_client.conversation import Conversation
from stream_client.core.pushes import Waiting
from stream_client.errors import (
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_client.shell.backoff import Backoff, Reconnect

SERVICE: Final = "block_subscribe"
RECEIVED_EVERY: Final = 4
"""The client confirms received bytes after each quarter of the window (1/RECEIVED_EVERY), so the node need not stop."""
FINAL: Final = frozenset(
    {SubscribeStatus.INVALID_REQUEST, SubscribeStatus.INVALID_START_BLOCK, SubscribeStatus.INVALID_END_BLOCK}
)
"""The refusals that every node would repeat, so that trying another node does not help."""
PASSING: Final = (ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer, DamagedAnswer)
"""The errors after which another connection or another node may succeed."""


class Subscription:
    """An asynchronous iterator over the events of the wanted blocks, over as many connections as needed.

    wait: whether to wait when the last source has ended or no node has the next block yet. If false, and there is no
    other node, this is an error. compress: whether to ask for items compressed with zstd. connections: the number of
    connections used.
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
        self._backoff = Backoff(reconnect, random.random)
        self._give_up_s = reconnect.give_up_s
        self._wait = wait
        self._compress = compress
        self._next = start
        self._begun: int | None = None
        self._found_empty: set[str] = set()
        self._progress_s = clients[0].now_s()
        self._failure: ClientError | None = None
        self._is_over = False
        self._at = 0
        self._source: _Source | None = None
        self._problem: ClientError | None = None

    async def begin(self) -> None:
        """Subscribe now, so that every block from this moment on is included. Errors are left to the iteration, which
        retries.
        """
        try:
            self._source = await self._subscribe(self._clients[0])
        except ClientError as error:
            self._problem = error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SubscriptionEvent:
        """Return the next event. Raises SubscriptionRefused, and after `give_up_s` without a block NodeUnreachable and
        others.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                raise StopAsyncIteration
            try:
                if self._problem is not None:
                    raise self._take_problem()
                if self._source is None:
                    self._source = await self._subscribe(self._clients[self._at])
                response = await self._source.next()
                if response is not None:
                    return self._event(response)
                if not self._has_all:
                    # A node may also end a subscription because the subscription has lasted very long.
                    raise SubscriptionRefused(SubscribeStatus.SUCCESS, self._source.end_reason)
                self._is_over = True
            except (SubscriptionRefused, *PASSING) as error:
                self._drop_source()
                self._judge(error)
                if self._begun is not None:
                    withdrawn, self._begun = self._begun, None
                    return BlockWithdrawn(withdrawn)
                if self._failure is None:
                    await self._next_node()
            except ClientError as error:
                self._drop_source()
                self._failure = error

    def close(self) -> None:
        """End the subscription, so that the node sends nothing more. Safe to repeat."""
        self._is_over = True
        self._drop_source()
        # blocking only: self._clients[self._at].shell.give_way()

    async def _subscribe(self, client: StreamClient) -> _Source:
        """Subscribe at this node, beginning with the next wanted block. Raises the errors of PASSING, and others."""
        start = await self._find_start(client)
        conversation = client.converse(SERVICE)
        try:
            await conversation.opened(self._patience_s())
            self.connections += 1
            request = Subscribe(1, start, self._end, self._early, self._window_bytes)
            source = _Source(conversation, request, self._answer_s_max, self._compress)
            self._note_start(client.address, await source.begin(), start)
        except BaseException:
            conversation.close()
            raise
        return source

    async def _find_start(self, client: StreamClient) -> int | None:
        """Return the block to begin with; None for the next new block.

        If this node had no blocks at an earlier attempt, begin with the first block that it has got since then.
        """
        if self._next is not None or client.address not in self._found_empty:
            return self._next
        conversation = client.converse("block_status")
        try:
            await conversation.opened(self._patience_s())
            status = await conversation.ask(STATUS, StatusRequest(1, False), self._answer_s_max)
        finally:
            conversation.close()
        return status.first_available

    def _take_problem(self) -> ClientError:
        problem, self._problem = self._problem, None
        assert problem is not None
        return problem

    def _judge(self, problem: ClientError) -> None:
        """Fail if no other attempt can help, or if no block has come for too long."""
        waited_s = self._now_s() - self._progress_s
        final = isinstance(problem, SubscriptionRefused) and (
            problem.status in FINAL
            or (not self._wait and len(self._clients) == 1 and problem.status is not SubscribeStatus.SUCCESS)
        )
        if final or (self._give_up_s is not None and waited_s >= self._give_up_s):
            self._failure = problem

    async def _next_node(self) -> None:
        """Change to the next node. After the last node, wait a while and begin with the first one again."""
        self._at = (self._at + 1) % len(self._clients)
        if self._at == 0:
            await self._clients[0].shell.wait(Waiting(), self._backoff.next_delay_s())

    def _drop_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.leave()

    @property
    def _has_all(self) -> bool:
        """Whether every wanted block has arrived."""
        return self._end is not None and self._next is not None and self._next > self._end

    def _note_start(self, node: str, number: int | None, asked: int | None) -> None:
        """Note where the subscription begins at this node. number: the first block; None if the node has none.

        Raises DamagedAnswer if the node got its first blocks between being found empty and this subscription.
        """
        if number is None:
            self._found_empty.add(node)
        elif asked is None and node in self._found_empty and self._next is None:
            raise DamagedAnswer(f"blocks came to {node} while it was asked for them; asking again")
        self._begin_at(number)

    def _begin_at(self, number: int | None) -> None:
        """If the first block was open, fix it to this block, so that the next connection begins there too."""
        if self._next is None:
            self._next = number

    def _event(self, response: SubscribedItems | SubscribedBlockEnd | SubscribedBlockWithdrawn) -> SubscriptionEvent:
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

    def _patience_s(self) -> float | None:
        """Return the longest time in seconds to wait for a connection so that `give_up_s` holds; None: for ever."""
        if self._give_up_s is None:
            return None
        return max(0.0, self._progress_s + self._give_up_s - self._now_s())

    def _now_s(self) -> float:
        return self._clients[0].now_s()


class _Source:
    """One subscription at one node, from `begin` to its end or `leave`. end_reason: the node's reason for the end."""

    def __init__(self, conversation: Conversation, request: Subscribe, answer_s_max: float, compress: bool) -> None:
        self.end_reason = ""
        self._conversation = conversation
        self._request = request
        self._answer_s_max = answer_s_max
        self._compress = compress
        self._is_subscribed = False
        self._sequence = 0
        self._taken_bytes = 0
        self._told_bytes = 0

    async def begin(self) -> int | None:
        """Subscribe. Returns the number of the first block; None if the node has no blocks."""
        await self._say(SubscribePacked(self._request) if self._compress else self._request)
        try:
            response = await self._answer(self._answer_s_max)
        except RequestRefused:
            if not self._compress:
                raise
            # An older node cannot compress, so we subscribe without compression.
            await self._say(self._request)
            response = await self._answer(self._answer_s_max)
        if isinstance(response, SubscriptionEnded):
            raise SubscriptionRefused(response.status, response.reason)
        if not isinstance(response, Subscribed):
            raise UnexpectedAnswer(f"not the beginning of a subscription: {type(response).__name__}")
        self._is_subscribed = True
        return response.start_block

    async def next(self) -> SubscribedItems | SubscribedBlockEnd | SubscribedBlockWithdrawn | None:
        """Return the next message about a block; None after the last one. Raises SubscriptionRefused and others."""
        # The node stops sending when a window's worth of bytes is not confirmed as received. We confirm in larger
        # portions, since a message for each read would cost more than it brings.
        if (self._taken_bytes - self._told_bytes) * RECEIVED_EVERY >= self._request.window_bytes:
            self._told_bytes = self._taken_bytes
            await self._say(Received(1, self._taken_bytes))
        response = await self._answer(None)
        if isinstance(response, Subscribed):
            raise UnexpectedAnswer("a second beginning of one subscription")
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

    def leave(self) -> None:
        """Ask the node to send nothing more. Without a connection the node has noticed the end by itself."""
        if self._is_subscribed:
            self._is_subscribed = False
            with suppress(ClientError):
                self._conversation.send_nowait(SUBSCRIBE.encode_request(Unsubscribe(1)))
        self._conversation.close()

    async def _say(self, request: SubscribeRequest) -> None:
        await self._conversation.send(SUBSCRIBE.encode_request(request))

    async def _answer(self, timeout_s: float | None) -> UnpackedResponse:
        payload = await self._conversation.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"the node has not answered for {self._answer_s_max:g} s")
        try:
            return unpacked(SUBSCRIBE.decode_response(payload))
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {SUBSCRIBE.name}: {error}") from error
