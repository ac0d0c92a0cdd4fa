"""The page of connections: the identities and connections that send and receive most, and a form that closes one.
It asks the node by `node/connections/1`, as the command `stream-node connections` does."""

from __future__ import annotations

from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME, Right
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.dashboard.rendering import number
from stream_node.doors.http.problems import Problem
from stream_node.node.node_connections import ADDRESS, CLOSE, CONNECTIONS, CloseRequest, ConnectionsRequest

SHOWN_MAX = 50


async def show_connections(page: DashboardPage) -> Response:
    page.need(OPERATOR, EVERY_NAME)
    async with page.client() as client:
        found = await client.session.ask(ADDRESS, CONNECTIONS, ConnectionsRequest(0, SHOWN_MAX))
    return page.show(
        "connections.html",
        active="connections",
        total=found.total,
        connections=found.connections,
        parties=found.parties,
        may_close=page.may(Right.ADMIN, EVERY_NAME),
    )


async def close(page: DashboardPage) -> Response:
    who = (await page.form()).get("who", "")
    async with page.client() as client:
        closed = (await client.session.ask(ADDRESS, CLOSE, CloseRequest(0, who, page.call.caller.peer.address))).closed
    if not closed:
        raise Problem(404, "no-such-connection", f"this node has no other connection of {who[:200]!r}")
    return page.go("/connections", done=f"{number(closed)} {'connection' if closed == 1 else 'connections'} closed.")
