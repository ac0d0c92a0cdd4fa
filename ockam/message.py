"""The routed message, and the origin: where a message entered this node."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ockam.address import Address, Route
from ockam.memory import UNCOUNTED, Holdings


def _no_backlog() -> int:
    return 0


def _no_bound() -> int:
    return 1 << 62


class Origin(msgspec.Struct, frozen=True, eq=False):
    """The place where a message entered this node. The node knows it by itself; no peer can write it into a route.

    kind: "local" for a worker of this node, "tcp" for a connection.
    peer: the `host:port` of the other side, for people.
    identity: the identity that the other side has proved; "anonymous" for a plain connection.
    frame_bytes_max: the largest frame that can carry an answer back.
    backlog_bytes: gives the bytes that wait to be sent back. backlog_bytes_max: gives the bound above which answers are
    better kept back; it depends on the memory of all peers.
    holdings: the memory that the other side makes this node hold.
    """

    kind: str
    peer: str = ""
    identity: str = "anonymous"
    frame_bytes_max: int = 16 * 1024 * 1024
    backlog_bytes: Callable[[], int] = _no_backlog
    backlog_bytes_max: Callable[[], int] = _no_bound
    holdings: Holdings = UNCOUNTED

    def is_behind(self, backlog_bytes_max: int) -> bool:
        """Whether more bytes wait to be sent back than this bound, or than the other side's share of the memory."""
        return self.backlog_bytes() > min(backlog_bytes_max, self.backlog_bytes_max())


HERE = Origin("local", identity="node")
"""The origin of the messages of this node's own workers."""


class Message(msgspec.Struct, gc=False, eq=False):
    """A routed message: the hops still to go, the route for an answer, and a payload. Never changed once it is sent."""

    onward_route: Route
    return_route: Route
    payload: bytes
    origin: Origin = HERE


def reply_to(message: Message, worker: Address, payload: bytes) -> Message:
    """The answer of `worker` to `message`: it goes along the return route, and leads back to the worker."""
    return Message(message.return_route, (worker,), payload)
