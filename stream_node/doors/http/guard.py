"""Finds out who sends a request, by a client certificate or a token, else anonymous. Before that, checks the host that
the request names and the web site that sent it. Also tells browsers which other web sites may use the paths of data
(CORS); all other paths stay closed to them.

A web page on this machine can reach a node at the loopback address. The check of the host stops pages whose own name
now points there (DNS rebinding), and the check of the origin stops all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Send

from ockam.actors.message import Origin
from ockam.identity.authentication import TokenStatus
from ockam.identity.authenticator import Authenticator
from ockam.identity.identity import Identity
from ockam.identity.token import is_this_machine
from ockam.quotas.memory import Holdings
from stream_node.doors.http.problems import RETRY, Problem, problem_of_status
from stream_node.node.config import Config

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DATA_PREFIX = b"/v1/"
READABLE_HEADERS = (
    *("Accept-Post", "Allow", "Content-Disposition", "Link", "Retry-After", "WWW-Authenticate"),
    *("Stream-Partition", "Stream-Index", "Stream-Time"),
    *("Stream-First-Index", "Stream-Next-Index", "Stream-Resume-Index"),
)
"""The headers of answers that a page may read, apart from those that every page may read."""
MAX_AGE_S = 600


def check_headers(request: HTTPConnection, config: Config) -> None:
    """Raises Problem if the first line and the headers are too large, or do not say where the body ends."""
    target = len(request.scope["raw_path"]) + len(request.scope["query_string"])
    if target + sum(len(name) + len(text) + 4 for name, text in request.headers.raw) > config.http_header_bytes_max:
        raise problem_of_status(431)
    # A proxy in front of the node may obey another header, and see other requests in the same bytes (smuggling).
    coding = request.headers.get("transfer-encoding")
    if coding is not None and ("content-length" in request.headers or request.scope["http_version"] == "1.0"):
        detail = "a request has a length or a transfer encoding, and with HTTP/1.0 a length; send one of them"
        raise Problem(400, "ambiguous-length", detail, headers={"Connection": "close"})


def check_host(request: HTTPConnection, config: Config) -> None:
    """Raises Problem if the header Host is not valid, or names another host than this node. Names are checked only if
    `http_hosts` is set, or if the node was called at a loopback address."""
    sent = request.headers.getlist("host")
    host = host_of(sent[0]) if len(sent) == 1 else None
    if host is None:
        raise Problem(400, "no-host", "a request needs one header Host, with the name of the node")
    is_local = is_this_machine(peer_of(request).server_host)
    if _is_ip_address(host) or (is_local and host == "localhost") or host in config.http_hosts:
        return
    if is_local or config.http_hosts:
        detail = f"this node is not called {host[:200]!r}; name it in http_hosts if it is, or use its IP address"
        raise Problem(421, "wrong-host", detail)


def check_origin(request: HTTPConnection, method: str, config: Config) -> None:
    """Raises Problem if a page of another web site wants to change something, or asks first whether it may."""
    if method in SAFE_METHODS and not is_preflight(request):
        return
    origin = request.headers.get("origin")
    if origin is None:
        is_foreign = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    else:
        is_own = origin != "null" and _netloc(origin) == request.headers.get("host")
        is_foreign = not is_own and origin not in config.http_origins
    if is_foreign:
        site = (origin or "another web site")[:200]
        detail = f"pages of {site} may not change or read anything; name the site in http_origins if they may"
        raise Problem(403, "foreign-origin", detail)


@lru_cache(maxsize=100)
def host_of(header: str) -> str | None:
    """Returns the host in small letters, without port and brackets; None if the header is not valid."""
    try:
        parts = urlsplit(f"//{header}")
        is_plain = parts.netloc == header and parts.username is None and (parts.port or 0) >= 0
    except ValueError:
        return None
    return parts.hostname if is_plain else None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


@lru_cache(maxsize=100)
def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_preflight(request: HTTPConnection) -> bool:
    is_asked = "access-control-request-method" in request.headers and "origin" in request.headers
    return request.scope["method"] == "OPTIONS" and is_asked


def readable_send(request: HTTPConnection, send: Send, config: Config) -> Send:
    """Returns a `send` that adds the headers of CORS, if the page that has sent the request may read the answer."""
    if is_preflight(request) or not _is_allowed(request, config):
        return send
    return partial(_middleware(config.http_origins, ()).send, send=send, request_headers=request.headers)


def options_answer(request: HTTPConnection, methods: Sequence[str], config: Config) -> Response:
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
    """Returns the maker of the CORS headers. It wraps no application: only its methods for headers are used."""
    return CORSMiddleware(
        Response(),
        allow_origins=origins,
        allow_methods=methods,
        # The names of headers are not bounded: each request may name headers of its messages.
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=READABLE_HEADERS,
        max_age=MAX_AGE_S,
    )


PLACE_STATE = "stream_node_place"
TOKEN_CHARACTERS_MAX = 512
"""The size of the largest token that is judged. A real token has about 50 characters."""


class Peer(NamedTuple):
    """The other side of a connection. address: `host:port`. server_host: the node's IP address that it called."""

    address: str
    identity: Identity
    is_encrypted: bool
    server_host: str

    def origin(self, identity: Identity) -> Origin:
        return Origin("http", self.address, identity)


class ConnectionContext(NamedTuple):
    """The data of a connection that its requests use. is_for_health: it may only ask for the health of a full node.
    note_received: called when all of a request was received. note_caller: called with the identity of a request."""

    peer: Peer
    holdings: Holdings
    is_for_health: bool
    note_received: Callable[[], None]
    note_caller: Callable[[Identity], None]


def place_of(request: HTTPConnection) -> ConnectionContext:
    place = request.scope["state"][PLACE_STATE]
    assert isinstance(place, ConnectionContext)
    return place


def peer_of(request: HTTPConnection) -> Peer:
    return place_of(request).peer


async def identify(request: HTTPConnection, authenticator: Authenticator) -> Origin:
    """Returns the sender of a request. Raises Problem if its token is refused; the refusal is delayed."""
    peer = peer_of(request)
    sent = request.headers.getlist("authorization")
    if not sent:
        return peer.origin(peer.identity)
    scheme, _, text = sent[0].partition(" ")
    text = text.strip()
    if len(sent) > 1 or scheme.lower() != "bearer" or not 0 < len(text) <= TOKEN_CHARACTERS_MAX:
        raise _unauthorized(
            "send one header Authorization: Bearer TOKEN; the node knows no other way, and no passwords"
        )
    return await judge_token(text, request, authenticator)


async def judge_token(text: str, request: HTTPConnection, authenticator: Authenticator) -> Origin:
    peer = peer_of(request)
    if not 0 < len(text) <= TOKEN_CHARACTERS_MAX:
        raise _unauthorized("this is no token; it has a wrong length")
    verdict = await authenticator.judge_text(text, peer.address, peer.identity, peer.is_encrypted)
    if verdict is None:
        detail = "too many refused tokens of this host wait for their answer; wait"
        raise Problem(429, "too-many-refusals", detail, headers=RETRY)
    if verdict.status is TokenStatus.SECOND:
        raise Problem(400, "second-identity", verdict.reason)
    if verdict.identity is None:
        raise _unauthorized(verdict.reason)
    return peer.origin(verdict.identity)


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="stream-node"'})
