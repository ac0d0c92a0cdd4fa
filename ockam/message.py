"""The routed message and the fact of where it entered this node."""

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
    """Where a message entered this node: a fact of the node that no peer can write into a route.

    kind: "local" for a worker of this node, "tcp" for a connection.
    peer: for people, `host:port` of the other side.
    identity: who the other side proved to be; "anonymous" for a plain connection.
    frame_bytes_max: the largest frame that can carry an answer back through this entry.
    backlog_bytes: how much waits to be sent back through this entry, in bytes. backlog_bytes_max: with how much, as
    things are at the node, answers are better kept back.
    holdings: what the other side makes this node hold.
    """

    kind: str
    peer: str = ""
    identity: str = "anonymous"
    frame_bytes_max: int = 16 * 1024 * 1024
    backlog_bytes: Callable[[], int] = _no_backlog
    backlog_bytes_max: Callable[[], int] = _no_bound
    holdings: Holdings = UNCOUNTED

    def is_behind(self, backlog_bytes_max: int) -> bool:
        """Whether more than this many bytes, or than the other side's share of memory, wait to be sent back."""
        return self.backlog_bytes() > min(backlog_bytes_max, self.backlog_bytes_max())


HERE = Origin("local", identity="node")
"""The origin of what a worker of this node sends."""


class Message(msgspec.Struct, gc=False, eq=False):
    """A payload with the hops still to go (`onward_route`) and the way back (`return_route`). Not changed once sent."""

    onward_route: Route
    return_route: Route
    payload: bytes
    origin: Origin = HERE


def reply_to(message: Message, worker: Address, payload: bytes) -> Message:
    """The answer of `worker` to `message`: back along its return route, with the worker as the new way back."""
    return Message(message.return_route, (worker,), payload)
