"""GrpcSubscription: an iterator over the blocks of a block node over gRPC. It connects again after failures."""

from __future__ import annotations

import random
from collections import deque
from contextlib import suppress
from typing import Self

import trio

from block_node.backfill.source import LACKING
from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_header
from block_node.client.errors import BlockTooLarge, DamagedAnswer, SubscriptionRefused
from block_node.grpc.client.channel import GrpcPeer
from block_node.grpc.client.connection import AskedCall
from block_node.grpc.client.source import SUBSCRIBE, SubscribeAnswer
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import block_or_none, write_message
from block_node.protocol_reading import SubscribeStatus
from stream_client.errors import ClientError, NodeFailed, NodeUnreachable
from stream_client.shell.base_shell import Backoff, Reconnect


class GrpcSubscription(SubscribeAnswer):
    """The blocks from `start` to `end`, each as its number and its items (an `AnswerHandler`). block_bytes_max: the
    most memory for one block: without a limit, a lying node could fill all memory.

    Invariant: `_blocks` has at most one block. While it has one, no message of the call is taken.
    """

    def __init__(self, peer: GrpcPeer, start: int | None, end: int | None, block_bytes_max: int) -> None:
        super().__init__()
        self._peer = peer
        self._block_bytes_max = block_bytes_max
        self._block_bytes = 0
        self._next = start
        self._last = end
        self._backoff = Backoff(Reconnect(), random.random)
        self._blocks: deque[tuple[int, list[bytes]]] = deque()
        self._changed = trio.Event()
        self._call: AskedCall | None = None
        self._failure: ClientError | None = None
        self._refused: SubscribeStatus | None = None
        self._is_over = self._is_again = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, list[bytes]]:
        """Returns the next block. Raises SubscriptionRefused if the node cannot provide it, BlockTooLarge,
        DamagedAnswer, or the error of a refused call, such as RequestRefused or AccessDenied."""
        while not self._blocks:
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                raise StopAsyncIteration
            if self._call is None:
                await self._begin()
            else:
                await self._changed.wait()
                self._changed = trio.Event()
        block = self._blocks.popleft()
        if self._call is not None:
            self._call.release()
        return block

    def close(self) -> None:
        """Ends the subscription at the node, and the iteration. Safe to repeat. A program that leaves the loop before
        the last block must call it: else the call stays until the client closes."""
        self._is_over = True
        self._blocks.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._changed.set()

    async def _begin(self) -> None:
        """Subscribes from the next block on. An unreachable node is asked again, after a growing pause."""
        if self._is_again:
            await trio.sleep(self._backoff.next_delay_s())
        self._items, self._block_bytes, self._counted_bytes, self._is_again = [], 0, 0, True
        request = {"start_block_number": block_or_none(self._next), "end_block_number": block_or_none(self._last)}
        try:
            connection = await self._peer.connection()
            if self._is_over:
                return
            message = write_message("SubscribeStreamRequest", request)
            self._call = self._peer.ask(connection, SUBSCRIBE, self, message)
            self._call.watch(self.note_arriving)
        except NodeUnreachable:
            # The next attempt follows.
            self._call = None

    # Called by the connection.

    def done(self, status: GrpcStatus, text: str) -> None:
        self._call = None
        self._changed.set()
        error = self._peer.error_of(status, text)
        # If the node stops or cannot be reached, the subscription begins again, as after SUCCESS before the last block.
        if status is not GrpcStatus.OK and not isinstance(error, NodeUnreachable | NodeFailed):
            self._fail(error)
        elif self._refused is not None:
            self._fail(SubscriptionRefused(self._refused, text))

    def _add(self, items: list[bytes]) -> None:
        super()._add(items)
        # The header has the number of the first block, which comes again if the connection ends in the middle of it.
        if self._next is None and self._items:
            first = self._items[0]
            with suppress(BlockFormatError):
                if item_kind(first) == ItemKind.HEADER:
                    self._next = read_header(first).number

    def _end_block(self, number: int) -> None:
        if not self._items or number != (number if self._next is None else self._next):
            self._fail(DamagedAnswer(f"{self._peer.address} ended block {number}, and block {self._next} had not come"))
            return
        self._blocks.append((number, self._items))
        self._items, self._block_bytes = [], 0
        self._next = number + 1
        self._is_over, self._is_again = number == self._last, False
        self._backoff.succeeded()
        if self._call is not None:
            self._call.hold()
        self._changed.set()

    def _take_status(self, code: int) -> None:
        if code in LACKING:
            self._refused = SubscribeStatus(code)

    def _take_damaged(self, reason: str) -> None:
        self._fail(DamagedAnswer(f"{self._peer.address}: {reason}"))

    @property
    def _wants_more(self) -> bool:
        return self._failure is None

    def _grew(self, size_bytes: int) -> None:
        self._block_bytes += size_bytes
        if self._block_bytes > self._block_bytes_max:
            self._items = []
            self._fail(BlockTooLarge(self._peer.address, self._block_bytes_max))

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._changed.set()
