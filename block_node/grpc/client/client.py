"""GrpcBlockClient: publishes blocks to a block node over gRPC, and subscribes to its blocks.

    async with connect_grpc("127.0.0.1:40840") as client:
        await client.publish([OutgoingBlock.from_file(path)])
        async for number, items in client.subscribe(0, 9): ...

It speaks to one node: a reference block node, or a block node of this project. `block_node.client` is the client of our
own protocols, which compares blocks by their root hashes; no message of the gRPC protocols names a root hash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

import trio

from block_node.backfill.route_source import LACKING
from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_header
from block_node.blocks.settings import VerifierSettings
from block_node.client.errors import BlockTooLarge, DamagedAnswer, SubscriptionRefused
from block_node.client.outgoing import OutgoingBlock
from block_node.grpc.client.channel import AskedCall, GrpcChannel
from block_node.grpc.client.consensus_machine import ConsensusLimits
from block_node.grpc.client.publisher import GIVE_UP_S, ConsensusPublisher
from block_node.grpc.client.source import SUBSCRIBE, SubscribeAnswer
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import block_or_none, write_message
from block_node.protocol_reading import SubscribeStatus
from ockam.actors.address import split_host_port
from ockam.actors.node import Node
from ockam.identity.tls import Tls, TlsFilesError, new_client_context
from ockam.identity.tls_layer import TlsLayer
from ockam.identity.token import Token, is_this_machine
from stream_client.errors import ClientError, InvalidArgument, NodeFailed, NodeUnreachable
from stream_client.shell.base_shell import CHANCE, Backoff, Reconnect

BLOCK_BYTES_MAX: Final = VerifierSettings().block_bytes_max
"""The largest block that a subscriber takes: the limit of a node that verifies blocks."""


class GrpcSubscription(SubscribeAnswer):
    """An iterator over the blocks from `start` to `end`, each as its number and its items. It is the `AnswerHandler` of
    its calls. block_bytes_max: the most memory for one block: without a limit, a lying node could fill all memory.

    Invariant: `_blocks` has at most one block. While it has one, no message of the call is taken.
    """

    def __init__(self, peer: GrpcChannel, start: int | None, end: int | None, block_bytes_max: int) -> None:
        super().__init__()
        self._peer = peer
        self._block_bytes_max = block_bytes_max
        self._block_bytes = 0
        self._next = start
        self._last = end
        self._backoff = Backoff(Reconnect(), CHANCE)
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


class GrpcBlockClient:
    """A client of one block node over gRPC. `connect_grpc` creates it."""

    def __init__(self, peer: GrpcChannel) -> None:
        self._peer = peer

    async def publish(
        self, blocks: Sequence[OutgoingBlock], *, give_up_s: float = GIVE_UP_S, limits: ConsensusLimits | None = None
    ) -> ConsensusPublisher:
        """Publishes blocks whose numbers follow each other, as a consensus node does. Returns when the node has
        acknowledged all of them. The node may have stored other blocks with these numbers.

        give_up_s: the longest time in which the node takes nothing and acknowledges nothing. limits: None means the
        limits of a consensus node. Raises BlockRefused, PublishGaveUp, NodeUnreachable or RequestRefused; BlockError if
        the file of a block cannot be read; InvalidArgument for blocks that do not follow each other.
        """
        publisher = ConsensusPublisher(self._peer, blocks, give_up_s=give_up_s, limits=limits)
        await publisher.run()
        return publisher

    def subscribe(
        self, start: int | None = None, end: int | None = None, *, block_bytes_max: int = BLOCK_BYTES_MAX
    ) -> GrpcSubscription:
        """Returns an iterator over the numbers and the items of whole blocks, in order and each once. If a connection
        fails, the iterator opens another one.

        start: the first block; None: the next new block. end: the last block; None: no end. block_bytes_max: the
        largest block that is taken; each item counts some bytes more than it has.
        """
        return GrpcSubscription(self._peer, start, end, block_bytes_max)


@asynccontextmanager
async def connect_grpc(
    address: str, *, tls: Tls | None = None, token: Token | None = None
) -> AsyncIterator[GrpcBlockClient]:
    """Opens a client of the block node at `address`, a `host:port`. It connects when it first needs the node.

    tls: how the client connects with TLS 1.3; None: no TLS. token: proves the client's name to one of our nodes. Raises
    InvalidArgument for an invalid address, for TLS files that cannot be used, and for a token that would leave this
    machine without TLS.
    """
    try:
        host, _ = split_host_port(address)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
    if token is not None and tls is None and not is_this_machine(host):
        raise InvalidArgument(f"a token is a secret: it is sent to {address} over TLS only; add TLS, or leave it out")

    make_tls = None if tls is None else _tls_maker(tls, host)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield GrpcBlockClient(GrpcChannel(Node(nursery), address, make_tls, token))
        except Exception as error:
            # Raised after the nursery, which would put the error into a group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _tls_maker(tls: Tls, host: str) -> Callable[[], TlsLayer]:
    try:
        context = new_client_context(tls)
    except TlsFilesError as error:
        raise InvalidArgument(str(error)) from error
    context.set_alpn_protocols(["h2"])
    return lambda: TlsLayer(context, server_side=False, server_name=tls.server_name or host)
