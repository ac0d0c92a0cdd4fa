"""`connect`: opens a client of block nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from block_node.client.client import BlockClient
from block_node.client.settings import ANSWER_S_MAX
from ockam.actors.address import Route
from stream_client.connecting import connect as connect_stream_client
from stream_client.secure import SecureChannel
from stream_client.shell.backoff import Reconnect

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token


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
