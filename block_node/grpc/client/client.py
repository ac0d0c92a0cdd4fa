"""GrpcBlockClient: publishes blocks to a block node over gRPC, and subscribes to its blocks.

    async with connect_grpc("127.0.0.1:40840") as client:
        await client.publish([OutgoingBlock.from_file(path)])
        async for number, items in client.subscribe(0, 9): ...

It speaks to one node: a reference block node, or ours. `block_node.client` is the client of our own protocols, which
compares blocks by their root hashes; no message of the gRPC protocols names a root hash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from block_node.blocks.settings import VerifierSettings
from block_node.client.outgoing import OutgoingBlock
from block_node.grpc.client.channel import GrpcChannel, GrpcPeer
from block_node.grpc.client.consensus_machine import ConsensusLimits
from block_node.grpc.client.publisher import GIVE_UP_S, ConsensusPublisher
from block_node.grpc.client.subscriber import GrpcSubscription
from ockam.actors.address import split_host_port
from ockam.actors.node import Node
from ockam.identity.tls import Tls, TlsFilesError, new_client_context
from ockam.identity.tls_layer import TlsLayer
from ockam.identity.token import Token, is_this_machine
from stream_client.errors import InvalidArgument

BLOCK_BYTES_MAX: Final = VerifierSettings().block_bytes_max
"""The largest block that a subscriber takes: the limit of a node that verifies blocks."""


class GrpcBlockClient:
    """A client of one block node over gRPC. `connect_grpc` creates it."""

    def __init__(self, peer: GrpcPeer) -> None:
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
        fails, it opens another one.

        start: the first block; None: the next new block. end: the last block; None: no end. block_bytes_max: the
        largest block that is taken; each item counts some bytes more than it has.
        """
        return GrpcSubscription(self._peer, start, end, block_bytes_max)


@asynccontextmanager
async def connect_grpc(
    address: str, *, tls: Tls | None = None, token: Token | None = None
) -> AsyncIterator[GrpcBlockClient]:
    """Opens a client of the block node at `address`, a `host:port`. It connects when it first needs the node.

    tls: how it connects with TLS 1.3; None: without. token: proves the client's name to one of our nodes. Raises
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
        channel = GrpcChannel(Node(nursery), address, make_tls)
        try:
            yield GrpcBlockClient(GrpcPeer(channel, token))
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
