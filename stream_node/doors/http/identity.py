"""HttpCaller: the sender of an HTTP request, as its client certificate or its token proves it; else anonymous."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import HTTPConnection

from ockam.actors.message import Origin
from ockam.identity.authentication import TokenStatus
from ockam.identity.authenticator import Authenticator
from ockam.identity.identity import Identity
from ockam.quotas.memory import Holdings
from stream_node.doors.http.problems import RETRY, Problem

PLACE_STATE = "stream_node_place"
TOKEN_CHARACTERS_MAX = 512
"""The size of the largest token that is judged. A real token has about 50 characters."""


class Peer(NamedTuple):
    """The other side of a connection. address: `host:port`. server_host: the node's IP address that it called."""

    address: str
    identity: Identity
    is_encrypted: bool
    server_host: str


class ConnectionContext(NamedTuple):
    """A connection, for its requests. is_for_health: it may only ask for the health of a full node.
    note_received: called when all of a request was received. note_caller: called with the identity of a request."""

    peer: Peer
    holdings: Holdings
    is_for_health: bool
    note_received: Callable[[], None]
    note_caller: Callable[[Identity], None]


class HttpCaller(NamedTuple):
    identity: Identity
    peer: Peer

    @property
    def origin(self) -> Origin:
        return Origin("http", self.peer.address, self.identity)


def place_of(request: HTTPConnection) -> ConnectionContext:
    place = request.scope["state"][PLACE_STATE]
    assert isinstance(place, ConnectionContext)
    return place


def peer_of(request: HTTPConnection) -> Peer:
    return place_of(request).peer


async def identify(request: HTTPConnection, authenticator: Authenticator) -> HttpCaller:
    """Returns the sender of a request. Raises Problem if its token is refused; the refusal is delayed."""
    peer = peer_of(request)
    sent = request.headers.getlist("authorization")
    if not sent:
        return HttpCaller(peer.identity, peer)
    scheme, _, text = sent[0].partition(" ")
    text = text.strip()
    if len(sent) > 1 or scheme.lower() != "bearer" or not 0 < len(text) <= TOKEN_CHARACTERS_MAX:
        raise _unauthorized(
            "send one header Authorization: Bearer TOKEN; the node knows no other way, and no passwords"
        )
    return await judge_token(text, request, authenticator)


async def judge_token(text: str, request: HTTPConnection, authenticator: Authenticator) -> HttpCaller:
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
    return HttpCaller(verdict.identity, peer)


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="stream-node"'})
