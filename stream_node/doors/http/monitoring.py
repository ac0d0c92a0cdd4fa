"""`/metrics`: the metrics of the node for Prometheus."""

from __future__ import annotations

import trio
from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from stream_node import __version__
from stream_node.doors.http.app import Endpoint, HttpCall
from stream_node.doors.metrics.snapshot import take_snapshot
from stream_node.doors.metrics.text import render

_one_at_a_time = trio.Lock()
"""Several scrapes at one moment wait for each other, so they keep one reading thread busy at most."""


async def metrics(call: HttpCall) -> Response:
    """Returns all metrics. The text is made in a thread, because that takes milliseconds."""
    async with _one_at_a_time:
        snapshot = await take_snapshot(call.parts, __version__)
        accept, coding = (call.request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        text, headers = await trio.to_thread.run_sync(render, snapshot, accept, coding)
    return Response(text, headers=headers)


ENDPOINTS = (Endpoint("GET", "/metrics", metrics, Demand(Right.OPERATE, EVERY_NAME)),)
