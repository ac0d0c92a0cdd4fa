"""The page of the operator's own workers: the tree that `stream-node status` shows. It asks by `node/own_workers/1`."""

from __future__ import annotations

from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME
from stream_node.doors.dashboard.listing import show_rows
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.hosting.status import ADDRESS, OWN_WORKERS, OwnWorkersRequest


async def show_own_workers(page: DashboardPage) -> Response:
    page.need(OPERATOR, EVERY_NAME)
    async with page.client() as client:
        # In a cluster and with several processes, the node asks the others.
        found = (await client.session.ask(ADDRESS, OWN_WORKERS, OwnWorkersRequest(0))).workers
    return page.show(
        "own_workers.html",
        shown=show_rows(page, found),
        has_processes=any(each.process for each in found),
    )
