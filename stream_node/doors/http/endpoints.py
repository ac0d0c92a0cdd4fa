"""Everything that the node answers over HTTP: its health, its metrics, and data (`stream_node.doors.http.data`).
`/livez` says whether the node must be restarted, `/readyz` whether it takes work."""

from __future__ import annotations

import trio
from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from stream_node.doors.http.app import Endpoint, HttpCall, json_response
from stream_node.doors.http.data.endpoints import ENDPOINTS as DATA
from stream_node.doors.http.problems import Problem
from stream_node.doors.metrics.snapshot import Snapshot, take_snapshot
from stream_node.node.parts import NodeParts

NOT_WRITING = "the writing thread has given up; look at the log line writing_stopped, and restart the node"


async def livez(call: HttpCall) -> Response:
    """Returns whether the writing thread works. The answer itself shows that the event loop runs."""
    return _answer("live", [] if call.parts.runner.is_writing else [NOT_WRITING])


async def readyz(call: HttpCall) -> Response:
    wanted = call.request.query_params.get("for", "write")
    if wanted not in ("read", "write"):
        raise Problem(400, "invalid-request", f"for={wanted[:40]!r} is neither read nor write")
    return _answer("ready", await _reasons_against(call.parts, writes=wanted == "write"))


async def _reasons_against(parts: NodeParts, *, writes: bool) -> list[str]:
    """Returns the reasons why the node takes no work at present.
    writes: whether the node must store pushes. Without that, it still serves reads, and deletions that make room."""
    reasons = []
    if parts.condition.is_draining:
        reasons.append("the node is stopping; send requests to it after its next start")
    if not writes:
        return reasons
    if not parts.runner.is_writing:
        reasons.append(NOT_WRITING)
    if parts.condition.refusing_pushes:
        least, free = parts.condition.needed_disk_bytes, parts.condition.free_disk_bytes
        kept = "free_disk_bytes_min"
        if least > parts.config.free_disk_bytes_min:
            kept += " and the ballast, which was given up for deletes and saves"
        reasons.append(f"the disk has {free} free bytes, and pushes need {least} ({kept}); make room")
    # A write is tried, since perhaps nobody has pushed of late. It can take long if the database server is down.
    if not reasons:
        failure = await parts.services.trials.settle()
        if failure is not None:
            reasons.append(f"pushes are not stored: {failure}")
    return reasons


def _answer(name: str, reasons: list[str]) -> Response:
    return json_response({name: not reasons, "reasons": reasons}, 503 if reasons else 200)


async def metrics(call: HttpCall) -> Response:
    """Returns all metrics for Prometheus. The text is made in a thread, because that takes milliseconds."""
    async with _one_at_a_time:
        snapshot = await take_snapshot(call.parts)
        accept, coding = (call.request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        text, headers = await trio.to_thread.run_sync(_text_of, snapshot, accept, coding)
    return Response(text, headers=headers)


def _text_of(snapshot: Snapshot, accept: str, coding: str) -> tuple[bytes, dict[str, str]]:
    # The first scrape loads prometheus-client, which takes 2 MB, in the thread of this call.
    from stream_node.doors.metrics.text import render

    return render(snapshot, accept, coding)


_one_at_a_time = trio.Lock()
"""Several scrapes at one moment wait for each other, so they keep one reading thread busy at most."""

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/livez", livez, is_open=True, is_health=True),
    Endpoint("GET", "/readyz", readyz, is_open=True, is_health=True),
    Endpoint("GET", "/metrics", metrics, Demand(Right.OPERATE, EVERY_NAME)),
    *DATA,
)
