"""Publishes blocks, subscribes to blocks, gets blocks, and asks for the status of block nodes.

    async with connect("127.0.0.1:4000") as client:
        async with client.publisher() as publisher:
            await publisher.send(OutgoingBlock.from_file(path))
            await publisher.flush()
        async with client.subscribe(0, 9) as blocks:
            async for block in blocks: ...

The client uses stream clients and their connections (`stream_client`). A program can name several nodes of one network.
When an operation fails at one node, the client tries the next node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from block_node.client.errors import BlockNotAvailable, DamagedAnswer
from block_node.client.publish_sessions import ANSWER_S_MAX, BlockPublisher, PublishSettings
from block_node.client.subscribing import (
    WINDOW_BYTES,
    BlockArrived,
    ItemsArrived,
    ReceivedBlock,
    Subscription,
)
from block_node.item_splitting import ItemJoiner
from block_node.protocol_reading import (
    GET,
    STATUS,
    BlockPart,
    GetBlock,
    GetStatus,
    StatusRequest,
    StatusResponse,
)
from ockam.actors.address import Route
from ockam.protocol import Protocol
from stream_client.client import StreamClient
from stream_client.connecting import SecureChannel
from stream_client.connecting import connect as connect_stream_client
from stream_client.errors import ClientError, ConnectionLost, NodeUnreachable, RequestTimeout
from stream_client.shell.base_shell import Reconnect

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token

Q = TypeVar("Q")
A = TypeVar("A")


@asynccontextmanager
async def connect(
    nodes: str | Sequence[str],
    *,
    via: Route = (),
    reconnect: Reconnect = Reconnect(),  # noqa: B008  (frozen, no state)
    answer_s_max: float = ANSWER_S_MAX,
    tls: Tls | None = None,
    token: Token | str | None = None,
    channel: SecureChannel | None = None,
) -> AsyncIterator[BlockClient]:
    """Opens a client of one or several block nodes of one network.

    - nodes: `host:port` of each node, the preferred node first.
    - via: the route from each of these nodes to the node that has the blocks. Empty: these nodes have the blocks.
    - reconnect: the delays between attempts to replace a lost connection.
    - answer_s_max: the maximum time in seconds that a node may take to answer.
    - tls: how the client connects with TLS 1.3, as for `stream_client.connect`. None: connections are not encrypted.
    - token: proves the client's name to each node, as for `stream_client.connect`.
    - channel: opens a secure channel to each node, which must have one of the identities in `channel.peer`.

    The client connects to a node when it first needs the node. So a call that needs an unreachable node raises the
    error, and `connect` does not. Raises InvalidArgument if a text is not an address.
    """
    addresses = [nodes] if isinstance(nodes, str) else nodes
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                connect_stream_client(
                    address,
                    via=via,
                    reconnect=reconnect,
                    answer_timeout_s=answer_s_max,
                    waits=False,
                    tls=tls,
                    token=token,
                    channel=channel,
                )
            )
            for address in addresses
        ]
        yield BlockClient(clients, answer_s_max=answer_s_max)


class BlockClient:
    """A client of one or several block nodes of one network. `connect` creates it. A program can also create it
    from connected stream clients, one for each node, the preferred node first, and still use these for streams."""

    def __init__(self, clients: Sequence[StreamClient], *, answer_s_max: float = ANSWER_S_MAX) -> None:
        assert clients, "at least one node"
        self._clients = list(clients)
        self._answer_s_max = answer_s_max

    @asynccontextmanager
    async def publisher(self, settings: PublishSettings | None = None) -> AsyncIterator[BlockPublisher]:
        """Opens a publisher of blocks. The end of its block waits until all given blocks are durable.
        settings: None means the defaults, with this client's `answer_s_max`."""
        publisher = BlockPublisher(self._clients, settings or PublishSettings(answer_s_max=self._answer_s_max))
        try:
            yield publisher
            await publisher.flush()
            publisher.close()
        finally:
            publisher.abort()
            self._clients[0].session.shell.exchange_nowait()

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
        """Subscribes to events, such as the arrival of items of a block. Use it for blocks that are larger than the
        memory, or to see items before their block ends.

        - start: the first block. None: the first available block if `end` is given, else the next new block.
        - end: the last block. None: no end.
        - early: whether to get items before their block is verified.
        - window_bytes: how many bytes the node may send before the client has confirmed them.
        - reconnect: the delays between attempts to reach a node.
        - wait: whether to wait for a block that no node can send yet. If False and there is a single node, the
          iteration fails when that node has no publisher or lacks the next block. With several nodes it always waits.
        - compress: whether to ask for items compressed with zstd, for slow connections. No effect with an older node.
        """
        subscription = Subscription(
            self._clients,
            start,
            end,
            early=early,
            window_bytes=window_bytes,
            answer_s_max=self._answer_s_max,
            reconnect=reconnect,
            wait=wait,
            compress=compress,
        )
        try:
            await subscription.begin()
            yield subscription
        finally:
            subscription.close()

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
        """Subscribes to whole verified blocks from `start` to `end`, in order and each once. If a connection fails, the
        subscription opens another one. The arguments are those of `subscribe_events`."""
        subscription = self.subscribe_events(start, end, reconnect=reconnect, wait=wait, compress=compress)
        async with subscription as events:
            yield WholeBlocks(events)

    async def status(self, *, detail: bool = False) -> StatusResponse:
        """Returns the status of the first node that answers. detail: whether to include block ranges and versions."""
        return await self._first("block_status", STATUS, StatusRequest(1, detail))

    async def get(self, number: int | None = None) -> tuple[int, bytes, bytes]:
        """Returns the number, the root hash and the bytes (a serialized `Block`) of one block, or of the latest block.
        Raises BlockNotAvailable or DamagedAnswer."""
        parts = [part async for part in self.get_parts(number)]
        return parts[0].block_number, parts[0].root, b"".join(part.data for part in parts)

    async def get_parts(self, number: int | None = None) -> AsyncIterator[BlockPart]:
        """Yields the bytes of one block, or of the latest block, in at least one part. Each part comes from the first
        node that has the block. Raises BlockNotAvailable or DamagedAnswer."""
        root, offset = b"", 0
        while True:
            part = await self._first("block_get", GET, GetBlock(1, number, number is None, offset))
            # The parts may come from several nodes, so each must continue the same block.
            if part.offset != offset or root not in (b"", part.root):
                raise DamagedAnswer(f"block {part.block_number} has changed while it was read; read it again")
            yield part
            number, root, offset = part.block_number, part.root, offset + len(part.data)
            if offset >= part.size_bytes:
                return
            if not part.data:
                raise DamagedAnswer(f"block {number} ends at byte {offset} of {part.size_bytes}")

    async def _first(self, service: str, protocol: Protocol[Q, A], request: Q) -> A:
        """Asks the nodes in order, and returns the first answer that is not a refusal. If all nodes fail, raises the
        last refusal, or else the first connection error."""
        problem: Exception | None = None
        for client in self._clients:
            try:
                answer = await self._ask(client, service, protocol, request)
                if not isinstance(answer, BlockPart) or answer.status is GetStatus.SUCCESS:
                    return answer
                number = request.block_number if isinstance(request, GetBlock) else None
                problem = BlockNotAvailable(number, answer.status, client.address, await self._what_it_has(client))
            except (ConnectionLost, NodeUnreachable, RequestTimeout) as error:
                problem = problem or error
        assert problem is not None, "there is at least one node"
        raise problem

    async def _ask(self, client: StreamClient, service: str, protocol: Protocol[Q, A], request: Q) -> A:
        conversation = client.converse(service)
        try:
            await conversation.opened(self._answer_s_max)
            return await conversation.ask(protocol, request, self._answer_s_max)
        finally:
            conversation.close()

    async def _what_it_has(self, client: StreamClient) -> StatusResponse | None:
        try:
            return await self._ask(client, "block_status", STATUS, StatusRequest(1, True))
        except ClientError:
            return None


class WholeBlocks:
    """An iterator over whole blocks, which it assembles from the events of a subscription."""

    def __init__(self, events: Subscription) -> None:
        self._events = events
        self._joiner = ItemJoiner()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedBlock:
        """Returns the next whole block. Raises the errors of the subscription."""
        while True:
            event = await anext(self._events)
            if isinstance(event, ItemsArrived):
                self._joiner.add(event.items, event.piece)
                continue
            items = self._joiner.take()
            if isinstance(event, BlockArrived):
                return ReceivedBlock(event.block_number, event.root, items)
