# Generated from stream_client/connecting.py by tools/generate_blocking.py; do not edit.
"""`connect`: opens an async client of a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ockam.address import Route
from stream_client.arguments import to_address
from stream_client.blocking.client import StreamClient
from stream_client.core.client_core import ClientCore
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.shell.backoff import Reconnect
from stream_client.shell.blocking_shell import open_shell
from stream_client.shell.defaults import ANSWER_TIMEOUT_S, Framing, OnLink


@contextmanager
def connect(
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
) -> Iterator[StreamClient]:
    """Open a client of the node at `address` (`host:port`; the default port is 4000), or of a node behind that node.

    via: the route from the node at `address` to the node to use; empty: use the node at `address` itself. service,
    index_service: the names of the stream service and the index service. Real Ockam services are named `stream` and
    `stream_index`; the default of index_service follows from service. framing: how messages are cut on the connection;
    `auto` tries the head framing and falls back to the legacy framing. contact_timeout_s: if the service has not
    answered anything within this time, every request fails with NodeUnreachable; None: each request waits for its own
    timeout. on_link: a function that the client calls when the connection is lost and when the connection is back.
    answer_timeout_s: how long a request waits for its answer before it raises RequestTimeout; None: for ever. waits:
    whether `connect` waits for the first connection. If false, `connect` returns at once and the client connects in the
    background.

    Raises InvalidArgument if an argument cannot be an address, and NodeUnreachable if the first connection fails.

    reconnect: how the client replaces a lost connection. The client then sends all unanswered requests again. If only
    the confirm of a push was lost, the message is then stored twice, unless its publisher is idempotent. None: the
    client does not reconnect; when the connection is lost, every present and later request fails with ConnectionLost.
    """
    address = to_address(address)
    asks_route = contact_timeout_s is not None or on_link is not None
    core = ClientCore(via=via, service=service, index_service=index_service, asks_route=asks_route)
    if on_link is not None:
        core.service_route.on_link = on_link
    with open_shell(address, core, framing, reconnect, contact_timeout_s, waits) as shell:
        yield StreamClient(address, core, shell, answer_timeout_s)
