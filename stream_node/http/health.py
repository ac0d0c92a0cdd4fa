"""The health of the node over HTTP: `/livez` says whether it must be restarted, `/readyz` whether it takes work."""

from __future__ import annotations

from starlette.responses import Response

from stream_node.http.app import Call, Endpoint, json_response
from stream_node.parts import NodeParts

NOT_WRITING = "the writing thread has given up; look at the log line writing_stopped, and restart the node"


async def livez(call: Call) -> Response:
    """The answer itself shows that the event loop runs."""
    return _answer("live", [] if call.parts.runner.is_writing else [NOT_WRITING])


async def readyz(call: Call) -> Response:
    return _answer("ready", reasons_against(call.parts))


def reasons_against(parts: NodeParts) -> list[str]:
    """Returns the reasons why the node takes no work at present. A node that listens has opened its database, so the
    tables are those of its version."""
    reasons = []
    if parts.condition.is_draining:
        reasons.append("the node is stopping; send requests to it after its next start")
    if not parts.runner.is_writing:
        reasons.append(NOT_WRITING)
    if parts.condition.refusing_pushes:
        least, free = parts.config.free_disk_bytes_min, parts.condition.free_disk_bytes
        reasons.append(f"the disk has {free} free bytes, and pushes need {least} (free_disk_bytes_min); make room")
    return reasons


def _answer(name: str, reasons: list[str]) -> Response:
    return json_response({name: not reasons, "reasons": reasons}, 503 if reasons else 200)


ENDPOINTS = (
    Endpoint("GET", "/livez", livez, is_open=True, is_health=True),
    Endpoint("GET", "/readyz", readyz, is_open=True, is_health=True),
)
