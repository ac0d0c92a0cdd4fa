"""CrossOrigin: tells browsers which pages of other web sites may use streams (CORS). Starlette makes the headers.
Only the paths of data take part. The dashboard, the metrics and the health of the node stay closed to other sites."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stream_node.node.config import Config

DATA_PREFIX = b"/v1/"
READABLE_HEADERS = (
    *("Accept-Post", "Allow", "Content-Disposition", "Link", "Retry-After", "WWW-Authenticate"),
    *("Stream-Partition", "Stream-Index", "Stream-Time"),
    *("Stream-First-Index", "Stream-Next-Index", "Stream-Resume-Index"),
)
"""The headers of answers that a page may read, apart from those that every page may read."""
MAX_AGE_S = 600


def is_preflight(request: HTTPConnection) -> bool:
    """Whether a browser asks if a page of another web site may send a request."""
    is_asked = "access-control-request-method" in request.headers and "origin" in request.headers
    return request.scope["method"] == "OPTIONS" and is_asked


def readable_send(request: HTTPConnection, send: Send, config: Config) -> Send:
    """Returns a function that sends an answer, with the headers that let the asking page read it, if it may."""
    if is_preflight(request) or not _is_allowed(request, config):
        return send
    return partial(_middleware(config.http_origins, ()).send, send=send, request_headers=request.headers)


def options_answer(request: HTTPConnection, methods: Sequence[str], config: Config) -> Response:
    """Returns the answer to OPTIONS for a path that takes these methods, also to a preflight request."""
    answer = Response(status_code=204, headers={"Allow": ", ".join(methods)})
    if is_preflight(request) and _is_allowed(request, config):
        # The browser compares the methods itself, so the answer has the same status for each of them.
        preflight = _middleware(config.http_origins, tuple(methods)).preflight_response(request.headers)
        added = {name: text for name, text in preflight.headers.items() if not name.startswith("content-")}
        answer.headers.update(added)
    return answer


def _is_allowed(request: HTTPConnection, config: Config) -> bool:
    return request.headers.get("origin") in config.http_origins and request.scope["raw_path"].startswith(DATA_PREFIX)


@lru_cache(maxsize=100)
def _middleware(origins: tuple[str, ...], methods: tuple[str, ...]) -> CORSMiddleware:
    """Returns the maker of headers. It wraps no application: only its methods that make headers are used."""
    return CORSMiddleware(
        _nothing,
        allow_origins=origins,
        allow_methods=methods,
        # The names of headers are not bounded: each request may name headers of its messages.
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=READABLE_HEADERS,
        max_age=MAX_AGE_S,
    )


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the maker of headers answers no request")
