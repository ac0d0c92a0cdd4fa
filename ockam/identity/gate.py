"""Gate: the interface of an object that decides which messages reach the workers of a node. It decides nothing itself.

A node without a gate delivers every message. `ockam.identity.rules` has the gate that obeys the operator's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ockam.actors.message import Message, Origin
from ockam.actors.worker import Worker
from ockam.identity.identity import Identity
from ockam.protocol import REFUSAL

DENIED = "access denied: "
"""The first words of the reason in an `error` for a message that the sender was not allowed to send."""


class Gate(Protocol):
    """Decides which messages a worker gets, by the identity that the sender of each has proved.

    Its methods share some parameters. origin: the connection, channel or worker from which a message came. rights: the
    bits of `Right`. name: the name of a stream, or a client id."""

    def admit(self, worker: Worker, run: Sequence[Message]) -> Sequence[Message]:
        """Returns the messages that the worker may get, in order. The gate answers the other messages."""

    def holds(self, origin: Origin, rights: int, name: str) -> bool:
        """Whether a sender has one of these rights on a name."""

    def find_next(self, origin: Origin, rights: int, name: str) -> str | None:
        """Returns the first name, not before `name`, on which a sender has one of these rights, or None."""

    def find_forward_refusal(self, origin: Origin, destination: str) -> str | None:
        """Returns why this node must not forward a sender's messages to the node at `host:port`; None if it may."""

    def note_tls_refused(self, peer: str, identity: Identity, reason: str) -> None:
        """Records a refused certificate, or failed TLS. identity: the identity of the peer's open connection."""


def is_denied(reason: str) -> bool:
    return reason.startswith((REFUSAL + DENIED, DENIED))
