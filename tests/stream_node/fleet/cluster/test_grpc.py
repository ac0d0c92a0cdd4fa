"""Goal: a node of a cluster that does not serve the chain says so over gRPC, and names the one that does. The peers of
a node that gives the chain away read why.

Method: two real nodes on a real PostgreSQL server, with PBJ's frames.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import NO_BLOCK, read_message, write_message
from ockam.actors.address import split_host_port
from tests.block_node.grpc.calls.block_door import STATUS, SUBSCRIBE, GrpcPublisher
from tests.block_node.grpc.http2.raw_client import Answer, framed, pbj_headers, raw_client
from tests.stream_node.fleet.cluster.nodes import PATIENCE_S, Nodes
from tests.stream_node.fleet.cluster.test_block_node import drain, owner_of_chain
from tests.support.postgres import PostgresServer


async def status_of(nodes: Nodes, number: int) -> Answer:
    async with raw_client(port_of(nodes, number)) as client:
        return await client.ask(pbj_headers(STATUS), framed(b""))


async def wait_named(nodes: Nodes, owner: int, *, by: int) -> None:
    """Waits until a node names the owner: it learns from its next beat that the other one has begun to serve."""
    with trio.fail_after(PATIENCE_S):
        while f"{nodes.all[owner].address} serves it" not in (await status_of(nodes, by)).text:
            await trio.sleep(0.1)


def port_of(nodes: Nodes, number: int) -> int:
    return split_host_port(nodes.all[number].grpc[0])[1]


async def test_the_chain_is_at_one_node_and_moves(server: PostgresServer, database: str, tmp_path: Path) -> None:
    settings = {"grpc": "127.0.0.1:0", "block_accept_unchecked_proofs": True}
    with Nodes(server, database, tmp_path, 2, **settings) as nodes:
        nodes.wait_shared(2)
        owner = owner_of_chain(nodes)
        other = 1 - owner
        with trio.fail_after(PATIENCE_S):
            while (await status_of(nodes, owner)).status != GrpcStatus.OK:
                await trio.sleep(0.1)
        assert (await status_of(nodes, other)).status == GrpcStatus.UNAVAILABLE
        await wait_named(nodes, owner, by=other)

        # A publisher and a subscriber of the node that gives the chain away.
        async with raw_client(port_of(nodes, owner)) as client:
            publisher = await GrpcPublisher.opened(client)
            follow = await client.open(pbj_headers(SUBSCRIBE))
            await client.send(follow, framed(write_message("SubscribeStreamRequest", {"end_block_number": NO_BLOCK})))
            await publisher.header(7)
            await publisher.expect("node_behind_publisher", NO_BLOCK)
            await trio.to_thread.run_sync(lambda: drain(nodes, owner, leaves=True))
            assert "another node" in await publisher.expect_end(1, NO_BLOCK, 0)
            told = await client.until_end(follow)
            assert read_message("SubscribeStreamResponse", told.messages()[-1]) == {"status": 1}
            # The connection stays, and the node that has the chain now is named.
            assert (await client.ask(pbj_headers(STATUS), framed(b""))).status == GrpcStatus.UNAVAILABLE
        with trio.fail_after(PATIENCE_S):
            while (await status_of(nodes, other)).status != GrpcStatus.OK:
                await trio.sleep(0.1)
        await wait_named(nodes, other, by=owner)
