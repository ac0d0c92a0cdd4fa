"""Authentication: the first message of a connection, by which a peer proves its name with a token.

    peer                                                      node
      │  [node_authenticate] from [here]   request_id, token    │
      ├────────────────────────────────────────────────────────▶│ the connection itself
      │  [here] from [node_authenticate]   status, identity     │
      │◀────────────────────────────────────────────────────────┤

The connection handles this message before anything else, and all its later messages have the proved identity. A refused
peer gets an answer, and the connection is closed. `authenticator` judges the messages of this module."""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

import bare
from ockam.actors.address import Route, local
from ockam.identity.identity import Identity
from ockam.protocol import Protocol

NODE_AUTHENTICATE = local("node_authenticate")
"""The next hop of an authentication. No node passes on a message with this next hop."""


class TokenStatus(enum.IntEnum):
    OK = 0
    UNKNOWN = 1
    """The node does not know this token, or the payload is no authentication."""
    EXPIRED = 2
    REVOKED = 3
    UNENCRYPTED = 4
    """The token came over a connection without TLS from another machine, so others could have read it."""
    SECOND = 5
    """The peer has proved another identity with its certificate. A connection has one identity."""
    LATE = 6
    """The message was not the first one of its connection. The connection stays as it is."""


# type AuthenticateRequest struct { request_id: uint  token: str }
class AuthenticateRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    token: str

    def __repr__(self) -> str:
        return f"AuthenticateRequest(request_id={self.request_id}, token=…)"


# type AuthenticateAnswer struct { request_id: uint  status: uint  identity: str  reason: str }
class AuthenticateAnswer(msgspec.Struct, frozen=True):
    """The answer to a token. status: a `TokenStatus`; a newer node can send other values. reason: a text for people;
    empty if the token was accepted.

    identity: the proved identity, as in rules, for example `token:spark`; empty after a refusal."""

    request_id: bare.UInt
    status: bare.UInt
    identity: str
    reason: str


AUTHENTICATE = Protocol("node/authenticate/1", AuthenticateRequest, AuthenticateAnswer)


class TokenVerdict(NamedTuple):
    status: TokenStatus
    identity: Identity | None = None
    reason: str = ""


def has_authentication_beyond(route: Route) -> bool:
    """Whether the next node would take a message on this route for an authentication of this node."""
    return len(route) > 1 and route[1] == NODE_AUTHENTICATE
