"""Checks a request before its caller is known: the name by which it calls the node, and the web site that sent it.
A web page in a browser on this machine can send requests to a node that listens at the loopback address. The check of
the host name stops pages whose own name now points at this address (DNS rebinding). The check of the origin stops all
others."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from ockam.identity.token import is_this_machine
from stream_node.doors.http.cross_origin import is_preflight
from stream_node.doors.http.identity import peer_of
from stream_node.doors.http.problems import Problem, problem_of_status
from stream_node.node.config import Config

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_headers(request: HTTPConnection, config: Config) -> None:
    """Raises Problem if the first line and the headers are too large, or do not say where the body ends.
    h11 bounds only headers that come in parts."""
    target = len(request.scope["raw_path"]) + len(request.scope["query_string"])
    if target + sum(len(name) + len(text) + 4 for name, text in request.headers.raw) > config.http_header_bytes_max:
        raise problem_of_status(431)
    # A proxy in front of the node may obey another header, and see other requests in the same bytes (smuggling).
    coding = request.headers.get("transfer-encoding")
    if coding is not None and ("content-length" in request.headers or request.scope["http_version"] == "1.0"):
        detail = "a request has a length or a transfer encoding, and with HTTP/1.0 a length; send one of them"
        raise Problem(400, "ambiguous-length", detail, headers={"Connection": "close"})


def check_host(request: HTTPConnection, config: Config) -> None:
    """Raises Problem if the request has no valid Host, or names a host that is not this node. Names are checked only if
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
    """Raises Problem if a page of another web site wants to change something, or asks for leave by a preflight
    request."""
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
    """Returns the host of a header Host in small letters, without port and brackets; None if it is not valid."""
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
