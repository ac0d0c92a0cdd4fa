"""The door of the client: `connect`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ockam.address import Route
from stream_client.arguments import to_address
from stream_client.client import StreamClient
from stream_client.core.client_core import ClientCore
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.shell.async_shell import open_shell
from stream_client.shell.backoff import Reconnect
from stream_client.shell.defaults import ANSWER_TIMEOUT_S, Framing, OnLink


@asynccontextmanager
async def connect(
    address: str = "127.0.0.1:4000",
    *,
    via: Route = (),
    service: str = STREAM_SERVICE,
    index_service: str | None = None,
    framing: Framing = "head",
    reconnect: Reconnect | None = Reconnect(),  # noqa: B008  (frozen, no state)
    answer_timeout_s: float | None = ANSWER_TIMEOUT_S,
    contact_timeout_s: float | None = None,
    on_link: OnLink | None = None,
    waits: bool = True,
) -> AsyncIterator[StreamClient]:
    """A client of the node at `host:port` (port 4000 by default), or of the node behind it at the end of `via`.

    via: the route from the node connected to. service, index_service: the names of these services at the node. Real
    Ockam services are at `stream` and `stream_index`; the second name follows from the first. framing: `auto` tries the
    head framing and falls back to legacy. contact_timeout_s: if the service has not answered anything within this time,
    every request fails with NodeUnreachable; None: each request waits for its own time. on_link: called when the
    connection is lost, and when it is back. answer_timeout_s: how long a request may be without an answer
    (RequestTimeout); None: for ever. waits: whether to wait for the first connection; without it, `connect` returns at
    once, and the first connection is made as all later ones are.

    Raises InvalidArgument for a text that cannot be an address, and NodeUnreachable where the first connection fails.
    A lost connection is made again as `reconnect` says, and requests without an answer are sent again: a push whose
    confirm was lost can then be stored twice, unless its publisher is idempotent. With reconnect None, a lost
    connection fails every request, then and later, with ConnectionLost.
    """
    address = to_address(address)
    asks_route = contact_timeout_s is not None or on_link is not None
    core = ClientCore(via=via, service=service, index_service=index_service, asks_route=asks_route)
    if on_link is not None:
        core.service_route.on_link = on_link
    async with open_shell(address, core, framing, reconnect, contact_timeout_s, waits) as shell:
        yield StreamClient(address, core, shell, answer_timeout_s)
