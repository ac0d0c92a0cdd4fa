"""Problem: an error of HTTP, as the problem details of RFC 9457. Also turns the errors of our client into problems."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from ockam.quotas.limits import share_of
from stream_client import errors
from stream_storage.errors import NO_ROOM

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:stream-node:problem:"
"""The beginning of the `type` of a problem. The name of the problem follows, for example `access-denied`."""
RETRY_AFTER_S = 1
RETRY = {"Retry-After": str(RETRY_AFTER_S)}


class Problem(Exception):
    """The error of one request. The answer is a JSON object with type, title, status and detail.

    name: a short fixed word, for example `access-denied`. detail: says what went wrong and what to do.
    headers: with Retry-After, the same request can succeed later (`retriable`).
    members: further members of the JSON object. Without `in_doubt`, the node has changed nothing."""

    def __init__(
        self,
        status: int,
        name: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = {"retriable": "Retry-After" in self.headers, "in_doubt": False, **(members or {})}

    def response(self) -> Response:
        title = self.name.replace("-", " ").capitalize()
        details = {"type": TYPE_PREFIX + self.name, "title": title, "status": self.status, "detail": self.detail}
        body = msgspec.json.encode(details | self.members)
        return Response(body, self.status, self.headers, MEDIA_TYPE)


def too_many_connections(connections_max: int) -> Problem:
    share = share_of(connections_max)
    detail = f"all {connections_max} connections (http_connections_max) are busy, or the {share} that one host or "
    detail += "certificate can have; behind a proxy, all clients are one host. This one may ask for /livez and /readyz"
    return Problem(503, "too-many-connections", detail, headers=RETRY)


_KINDS: tuple[tuple[type[errors.ClientError], int, str], ...] = (
    (errors.InvalidArgument, 400, "invalid-request"),
    (errors.AccessDenied, 403, "access-denied"),
    (errors.LimitExceeded, 429, "limit-exceeded"),
    (errors.NotSupported, 501, "not-supported"),
    (errors.RequestRefused, 400, "request-refused"),
    (errors.StreamNotFound, 404, "stream-not-found"),
    (errors.PositionBeyondEnd, 409, "position-beyond-end"),
    (errors.LeaseLost, 409, "lease-lost"),
    (errors.PushOutOfOrder, 409, "out-of-order"),
    (errors.PushNotStored, 507, "not-stored"),
    (errors.PushUnknown, 500, "unknown-whether-stored"),
    (errors.PushFailed, 500, "push-failed"),
    (errors.NodeFailed, 503, "node-failed"),
    (errors.RequestTimeout, 504, "timeout"),
    (errors.ConnectionLost, 503, "connection-lost"),
    (errors.ClientClosed, 503, "connection-lost"),
)
"""The status and the name for each error of the client. The first that fits counts, so bases stand last."""


def problem_of(error: errors.ClientError, *, is_read: bool = False) -> Problem:
    """Returns the problem for an error of the client inside the node. is_read: the request could change nothing."""
    found = ((status, name) for kind, status, name in _KINDS if isinstance(error, kind))
    status, name = next(found, (500, "internal-error"))
    members: dict[str, Any] = {"retriable": error.retriable, "in_doubt": error.in_doubt and not is_read}
    if isinstance(error, errors.NodeFailed) and NO_ROOM in str(error):
        # An operation that found no room has stored nothing.
        return Problem(507, "no-room", str(error), headers=RETRY, members=members | {"in_doubt": False})
    if isinstance(error, errors.AccessDenied) and error.right:
        members |= {"right": error.right, "rule": error.rule}
    if isinstance(error, errors.PushOutOfOrder):
        members |= {"expected": error.expected}
    return Problem(status, name, str(error), headers=RETRY if error.retriable else None, members=members)


def problem_of_status(status: int) -> Problem:
    """Returns the problem of a request that is not valid HTTP. status: as h11 proposes it."""
    if status == 431:
        detail = "the first line and the headers are too large (http_header_bytes_max); send shorter ones"
        return Problem(431, "headers-too-large", detail)
    if status == 400:
        return Problem(400, "not-http", "this is no valid request of HTTP/1.1; look at its first line and its headers")
    return Problem(status, "request-failed", HTTPStatus(status).phrase)
