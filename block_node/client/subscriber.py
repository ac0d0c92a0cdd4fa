"""Subscribes to blocks at one of several nodes and goes on at another one, so that each block comes whole and once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Self, TypeAlias

import anyio
import msgspec

from block_node.client.connection import BlockConnection, Conversation, open_connection
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
from ockam.address import Route
from ockam.protocol import ProtocolError
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
WINDOW_BYTES: Final = 8 * 1024 * 1024
EVENTS_MAX: Final = 4
"""Taken from the connection ahead of who iterates."""
LAST_WORDS_S: Final = 1.0
RECEIVED_EVERY: Final = 4
"""A part of the window: after each such part the node is told, so that it need not stop."""
FINAL: Final = frozenset(
    {SubscribeStatus.INVALID_REQUEST, SubscribeStatus.INVALID_START_BLOCK, SubscribeStatus.INVALID_END_BLOCK}
)
"""What no node will say otherwise."""
PASSING: Final = (ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer, DamagedAnswer)
"""What another connection may mend."""


class ItemsArrived(msgspec.Struct, frozen=True, gc=False):
    """Items of a block, from its header on, or one piece of one. verified: False in the early mode."""

    block_number: int
    items: list[bytes]
    piece: Piece
    verified: bool


class BlockArrived(msgspec.Struct, frozen=True):
    """All items of the block have come, and it is verified."""

    block_number: int
    root: bytes


class BlockWithdrawn(msgspec.Struct, frozen=True):
    """Forget what came of this block: it begins anew (another node, or an early block that was not verified)."""

    block_number: int


SubscriptionEvent: TypeAlias = ItemsArrived | BlockArrived | BlockWithdrawn


class Subscription:
    """What one subscriber wants and where it stands, over all connections. An async iterator of events.

    wait: whether to wait where the last source ended or no node has the next block yet; else that is an error, where
    there is no other node. compress: ask for items compressed with zstd. connections: how many have been made.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        via: Route,
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
        self._nodes = list(nodes)
        self._via = via
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
        self._progress_s = anyio.current_time()
        self._send, self._receive = anyio.create_memory_object_stream[SubscriptionEvent](EVENTS_MAX)
        self._failure: ClientError | None = None
        self.connections = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SubscriptionEvent:
        """Raises SubscriptionRefused; NodeUnreachable and others after `give_up_s` without a block."""
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            if self._failure is not None:
                raise self._failure from None
            raise StopAsyncIteration from None

    async def run(self) -> None:
        """Take what comes, connection after connection, until the end that was asked for."""
        async with self._send:
            while True:
                if await self._try_nodes() or self._failure is not None:
                    return
                await anyio.sleep(self._backoff.next_delay_s())

    def close(self) -> None:
        """Nobody iterates any more."""
        self._send.close()
        self._receive.close()

    async def _try_nodes(self) -> bool:
        """One attempt at each node; whether all has come that was asked for."""
        for node in self._nodes:
            try:
                async with open_connection(node, self._via) as connection:
                    self.connections += 1
                    await self._take_all(connection.converse(SERVICE), await self._find_start(connection))
                return True
            except (SubscriptionRefused, *PASSING) as error:
                problem = error
            except ClientError as error:
                self._failure = error
                return False
            if self._begun is not None:
                withdrawn, self._begun = self._begun, None
                await self._send.send(BlockWithdrawn(withdrawn))
            waited_s = anyio.current_time() - self._progress_s
            final = isinstance(problem, SubscriptionRefused) and (
                problem.status in FINAL
                or (not self._wait and len(self._nodes) == 1 and problem.status is not SubscribeStatus.SUCCESS)
            )
            if final or (self._give_up_s is not None and waited_s >= self._give_up_s):
                self._failure = problem
                return False
        return False

    async def _find_start(self, connection: BlockConnection) -> int | None:
        """The block to begin with. Who found this node empty asked for all that has come to it since."""
        if self._next is not None or connection.address not in self._found_empty:
            return self._next
        status = await connection.ask("block_status", STATUS, StatusRequest(1, False), self._answer_s_max)
        return status.first_available

    async def _take_all(self, conversation: Conversation, start: int | None) -> None:
        """What one connection brings, until the end that was asked for. Raises what ended it otherwise."""
        request = Subscribe(1, start, self._end, self._early, self._window_bytes)
        await conversation.send(SUBSCRIBE.encode_request(SubscribePacked(request) if self._compress else request))
        asked_packed = self._compress
        sequence = taken_bytes = told_bytes = 0
        subscribed = False
        try:
            while True:
                try:
                    response = await self._answer(conversation, None if subscribed else self._answer_s_max)
                except RequestRefused:
                    if subscribed or not asked_packed:
                        raise
                    # The node is of a version that packs nothing.
                    asked_packed = False
                    await conversation.send(SUBSCRIBE.encode_request(request))
                    continue
                if isinstance(response, Subscribed):
                    subscribed = True
                    self._note_start(conversation.node, response.start_block, start)
                    continue
                if response.sequence != sequence:
                    raise DamagedAnswer(f"message {sequence} of the subscription is missing")
                sequence += 1
                if isinstance(response, SubscriptionEnded):
                    subscribed = False
                    if response.status is SubscribeStatus.SUCCESS and self._has_all:
                        return
                    raise SubscriptionRefused(response.status, response.reason)
                await self._send.send(self._event(response))
                if isinstance(response, SubscribedItems):
                    taken_bytes += sum(map(len, response.items))
                if (taken_bytes - told_bytes) * RECEIVED_EVERY >= self._window_bytes:
                    told_bytes = taken_bytes
                    await conversation.send(SUBSCRIBE.encode_request(Received(1, taken_bytes)))
        finally:
            conversation.close()
            if subscribed:
                with anyio.move_on_after(LAST_WORDS_S, shield=True):
                    await _leave(conversation)

    @property
    def _has_all(self) -> bool:
        """Whether all has come that was asked for; a node may also end a subscription because it lasted so long."""
        return self._end is not None and self._next is not None and self._next > self._end

    def _note_start(self, node: str, number: int | None, asked: int | None) -> None:
        """Raises DamagedAnswer where the first blocks came between finding the node empty and subscribing."""
        if number is None:
            self._found_empty.add(node)
        elif asked is None and node in self._found_empty and self._next is None:
            raise DamagedAnswer(f"blocks came to {node} while it was asked for them; asking again")
        self._begin_at(number)

    def _begin_at(self, number: int | None) -> None:
        """Who asked for "from now on" has asked for this block, also at the next connection."""
        if self._next is None:
            self._next = number

    async def _answer(self, conversation: Conversation, timeout_s: float | None) -> UnpackedResponse:
        payload = await conversation.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"the node has not answered for {self._answer_s_max:g} s")
        try:
            return unpacked(SUBSCRIBE.decode_response(payload))
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {SUBSCRIBE.name}: {error}") from error

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
        self._progress_s = anyio.current_time()
        self._backoff.succeeded()
        return BlockArrived(number, response.root)


async def _leave(conversation: Conversation) -> None:
    try:
        await conversation.send(SUBSCRIBE.encode_request(Unsubscribe(1)))
    except ConnectionLost:
        # Then the node has noticed by itself.
        return
