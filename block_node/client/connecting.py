"""The door of the block client: `connect`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from block_node.client.client import BlockClient
from block_node.client.settings import ANSWER_S_MAX
from ockam.address import Route
from stream_client.connecting import connect as connect_stream_client
from stream_client.shell.backoff import Reconnect


@asynccontextmanager
async def connect(
    nodes: str | Sequence[str],
    *,
    via: Route = (),
    reconnect: Reconnect = Reconnect(),  # noqa: B008  (frozen, no state)
    answer_s_max: float = ANSWER_S_MAX,
) -> AsyncIterator[BlockClient]:
    """A client of block nodes of one network: `host:port` of each, the preferred one first.

    via: the hops between the node connected to and the node that has the blocks. reconnect: how lost connections are
    made again. answer_s_max: how long a node may take to answer. Connections are made as they are needed: a node that
    cannot be reached is an error of the calls that need it. Raises InvalidArgument for a text that is no address.
    """
    addresses = [nodes] if isinstance(nodes, str) else nodes
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                connect_stream_client(address, via=via, reconnect=reconnect, answer_timeout_s=answer_s_max, waits=False)
            )
            for address in addresses
        ]
        yield BlockClient(clients, answer_s_max=answer_s_max)
