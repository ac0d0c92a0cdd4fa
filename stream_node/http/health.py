"""The health of the node over HTTP: `/livez` says whether its event loop and its writing thread run."""

from __future__ import annotations

from starlette.responses import Response

from stream_node.http.app import Call, Endpoint, json_response


async def livez(call: Call) -> Response:
    """The answer itself shows that the event loop runs."""
    reasons = [] if call.parts.runner.is_writing else ["the writing thread has ended; restart the node"]
    return json_response({"live": not reasons, "reasons": reasons}, 503 if reasons else 200)


ENDPOINTS = (Endpoint("GET", "/livez", livez, is_open=True),)
