"""The client of block nodes for programs without an event loop: scripts, notebooks.

    client = BlockClient(["127.0.0.1:4000"])
    with client.publisher() as publisher:
        for path in paths:
            publisher.send(OutgoingBlock.from_file(path))
    with client.subscribe(0, 9) as blocks:
        for block in blocks: ...

Names and meanings are those of the async client (`block_node.client.client`), without `await`. It decides nothing: that
client runs in an event loop in a thread of its own for as long as a `with` block or a call lasts, so that blocks are
sent and acknowledged while the program does something else. A publisher or subscription is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from block_node.client import client as async_form
from block_node.client import publisher as async_publisher
from block_node.client.client import ANSWER_S_MAX, ReceivedBlock
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publisher import PublishSettings
from block_node.client.subscriber import WINDOW_BYTES, SubscriptionEvent
from block_node.protocol_reading import BlockPart, StatusResponse
from ockam.address import Route
from stream_client.shell.backoff import Reconnect

T = TypeVar("T")


class BlockClient:
    """As `block_node.client.BlockClient`."""

    def __init__(self, nodes: Sequence[str], *, via: Route = (), answer_s_max: float = ANSWER_S_MAX) -> None:
        self._inner = async_form.BlockClient(nodes, via=via, answer_s_max=answer_s_max)

    @contextmanager
    def publisher(self, settings: PublishSettings | None = None) -> Iterator[BlockPublisher]:
        """What it was given and is not durable when the block ends by itself is waited for."""
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(self._inner.publisher(settings)) as publisher,
        ):
            yield BlockPublisher(portal, publisher)

    @contextmanager
    def subscribe(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        reconnect: Reconnect = Reconnect(),  # noqa: B008  (frozen, no state)
        wait: bool = True,
        compress: bool = False,
    ) -> Iterator[Blocking[ReceivedBlock]]:
        """Whole verified blocks from `start` to `end`, in order, each once, over whatever connections that takes."""
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(
                self._inner.subscribe(start, end, reconnect=reconnect, wait=wait, compress=compress)
            ) as blocks,
        ):
            yield Blocking(portal, blocks)

    @contextmanager
    def subscribe_events(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        early: bool = False,
        window_bytes: int = WINDOW_BYTES,
        reconnect: Reconnect = Reconnect(),  # noqa: B008  (frozen, no state)
        wait: bool = True,
        compress: bool = False,
    ) -> Iterator[Blocking[SubscriptionEvent]]:
        """What comes of those blocks, as it comes: for blocks larger than memory, or early ones."""
        subscription = self._inner.subscribe_events(
            start, end, early=early, window_bytes=window_bytes, reconnect=reconnect, wait=wait, compress=compress
        )
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(subscription) as events:
            yield Blocking(portal, events)

    def status(self, *, detail: bool = False) -> StatusResponse:
        """Of the first node that answers."""
        with start_blocking_portal() as portal:
            return portal.call(lambda: self._inner.status(detail=detail))

    def get(self, number: int | None = None) -> tuple[int, bytes, bytes]:
        """Number, root and bytes of a block; None: of the latest. Raises BlockNotAvailable."""
        with start_blocking_portal() as portal:
            return portal.call(self._inner.get, number)

    def get_parts(self, number: int | None = None) -> Iterator[BlockPart]:
        """The bytes of a block in order, some at a time. Raises BlockNotAvailable, DamagedAnswer."""
        with start_blocking_portal() as portal:
            yield from Blocking(portal, self._inner.get_parts(number))


class BlockPublisher:
    """As `block_node.client.BlockPublisher`."""

    def __init__(self, portal: BlockingPortal, inner: async_publisher.BlockPublisher) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def acknowledged(self) -> int | None:
        """The highest block of those given to `send` that is known to be durable, with all given below it."""
        return self._inner.acknowledged

    @property
    def compared(self) -> int:
        """Blocks that the node had without this publisher, and that were compared by their roots."""
        return self._inner.compared

    @property
    def kept(self) -> int:
        """Blocks without an acknowledgement."""
        return self._inner.kept

    def send(self, block: OutgoingBlock) -> None:
        """Have it published; waits while too much is kept.

        Raises AnotherBlock, BlockNotCompared, BlockRefused, PublishGaveUp, NodeUnreachable, BlockError.
        """
        self._portal.call(self._inner.send, block)

    def flush(self) -> None:
        """Until all that was given to `send` is durable. Raises as `send` does."""
        self._portal.call(self._inner.flush)


class Blocking(Generic[T]):
    """What an async iterator gives, one by one. Raises what it raises."""

    def __init__(self, portal: BlockingPortal, inner: AsyncIterator[T]) -> None:
        self._portal = portal
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return self._portal.call(self._take)
        except StopAsyncIteration:
            raise StopIteration from None

    async def _take(self) -> T:
        return await anext(self._inner)
