"""The client of block nodes: publish, subscribe, get, status. Under trio or asyncio (AnyIO).

    client = BlockClient(["127.0.0.1:4000"])
    async with client.publisher() as publisher:
        await publisher.send(OutgoingBlock.from_file(path))
        await publisher.flush()
    async with client.subscribe(0, 9) as blocks:
        async for block in blocks: ...

Several nodes of one network can be given; what fails at one is done at the next one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeVar

import anyio
import msgspec

from block_node.client.connection import BlockConnection, open_connection
from block_node.client.errors import BlockNotAvailable, DamagedAnswer
from block_node.client.publisher import BlockPublisher, PublishSettings
from block_node.client.subscriber import (
    WINDOW_BYTES,
    BlockArrived,
    ItemsArrived,
    Subscription,
)
from block_node.protocol import Piece
from block_node.protocol_reading import GET, STATUS, BlockPart, GetBlock, GetStatus, StatusRequest, StatusResponse
from ockam.address import Route
from stream_client.errors import ConnectionLost, NodeUnreachable, RequestTimeout
from stream_client.shell.backoff import Reconnect

T = TypeVar("T")

ANSWER_S_MAX = 30.0


class ReceivedBlock(msgspec.Struct, frozen=True):
    """A verified block, whole."""

    number: int
    root: bytes
    items: list[bytes]


class BlockClient:
    """Holds no connection by itself; each use makes the ones it needs. nodes: `host:port`, the preferred one first.

    via: the hops between the node connected to and the node that has the blocks.
    """

    def __init__(self, nodes: Sequence[str], *, via: Route = (), answer_s_max: float = ANSWER_S_MAX) -> None:
        assert nodes, "at least one node"
        self._nodes = list(nodes)
        self._via = via
        self._answer_s_max = answer_s_max

    @asynccontextmanager
    async def publisher(self, settings: PublishSettings | None = None) -> AsyncIterator[BlockPublisher]:
        """A publisher. What it was given and is not durable when the block ends by itself is waited for."""
        publisher = BlockPublisher(self._nodes, self._via, settings or PublishSettings(answer_s_max=self._answer_s_max))
        failure: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publisher.run)
            try:
                yield publisher
                await publisher.flush()
                await publisher.close()
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                # Raised behind the task group, so that it leaves the block as it is and not as a group of one.
                failure = error
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def subscribe_events(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        early: bool = False,
        window_bytes: int = WINDOW_BYTES,
        reconnect: Reconnect = Reconnect(),  # noqa: B008  (frozen, no state)
        wait: bool = True,
        compress: bool = False,
    ) -> AsyncIterator[Subscription]:
        """What comes of the blocks from `start` to `end`, as it comes: for blocks larger than memory, or early ones.

        start None: from the first available where there is an end, else what comes from now on. compress: items come
        compressed with zstd, where the node can do that; for slow lines.
        """
        subscription = Subscription(
            self._nodes,
            self._via,
            start,
            end,
            early=early,
            window_bytes=window_bytes,
            answer_s_max=self._answer_s_max,
            reconnect=reconnect,
            wait=wait,
            compress=compress,
        )
        failure: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(subscription.run)
            try:
                yield subscription
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                # Raised behind the task group, so that it leaves the block as it is and not as a group of one.
                failure = error
            finally:
                tasks.cancel_scope.cancel()
        subscription.close()
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def subscribe(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        reconnect: Reconnect = Reconnect(),  # noqa: B008  (frozen, no state)
        wait: bool = True,
        compress: bool = False,
    ) -> AsyncIterator[WholeBlocks]:
        """Whole verified blocks from `start` to `end`, in order, each once, over whatever connections that takes."""
        subscription = self.subscribe_events(start, end, reconnect=reconnect, wait=wait, compress=compress)
        async with subscription as events:
            yield WholeBlocks(events)

    async def status(self, *, detail: bool = False) -> StatusResponse:
        """Of the first node that answers."""

        async def ask(connection: BlockConnection) -> StatusResponse:
            return await connection.ask("block_status", STATUS, StatusRequest(1, detail), self._answer_s_max)

        return await self._first(ask)

    async def get(self, number: int | None = None) -> tuple[int, bytes, bytes]:
        """Number, root and bytes (a serialized `Block`) of a block; None: of the latest. Raises BlockNotAvailable."""
        parts = [part async for part in self.get_parts(number)]
        return parts[0].block_number, parts[0].root, b"".join(part.data for part in parts)

    async def get_parts(self, number: int | None = None) -> AsyncIterator[BlockPart]:
        """The bytes of a block in order, some at a time, at least one part, of the first node that has it.

        Raises BlockNotAvailable, DamagedAnswer.
        """
        root, offset = b"", 0
        while True:
            part = await self._first(lambda connection: self._get_part(connection, number, offset))  # noqa: B023
            if part.offset != offset or root not in (b"", part.root):
                raise DamagedAnswer(f"block {part.block_number} has changed while it was read; read it again")
            yield part
            number, root, offset = part.block_number, part.root, offset + len(part.data)
            if offset >= part.size_bytes:
                return
            if not part.data:
                raise DamagedAnswer(f"block {number} ends at byte {offset} of {part.size_bytes}")

    async def _get_part(self, connection: BlockConnection, number: int | None, offset: int) -> BlockPart:
        """Raises BlockNotAvailable."""
        request = GetBlock(1, number, number is None, offset)
        part = await connection.ask("block_get", GET, request, self._answer_s_max)
        if part.status is not GetStatus.SUCCESS:
            raise BlockNotAvailable(number, part.status)
        return part

    async def _first(self, ask: Callable[[BlockConnection], Awaitable[T]]) -> T:
        """What the first node says that can be asked and has it. Raises why none does."""
        problem: Exception | None = None
        for node in self._nodes:
            try:
                async with open_connection(node, self._via) as connection:
                    return await ask(connection)
            except (ConnectionLost, NodeUnreachable, RequestTimeout) as error:
                problem = problem or error
            except BlockNotAvailable as error:
                # Of several reasons the one that a node gave says most.
                problem = error
        assert problem is not None, "there is at least one node"
        raise problem


class WholeBlocks:
    """The blocks that a subscription's events make up."""

    def __init__(self, events: Subscription) -> None:
        self._events = events
        self._items: list[bytes] = []
        self._pieces: list[bytes] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedBlock:
        """Raises as the subscription does."""
        while True:
            event = await anext(self._events)
            if isinstance(event, ItemsArrived):
                self._add(event)
                continue
            items, self._items, self._pieces = self._items, [], []
            if isinstance(event, BlockArrived):
                return ReceivedBlock(event.block_number, event.root, items)

    def _add(self, event: ItemsArrived) -> None:
        if event.piece is Piece.WHOLE:
            self._items += event.items
            return
        self._pieces += event.items
        if event.piece is Piece.LAST:
            self._items.append(b"".join(self._pieces))
            self._pieces = []
