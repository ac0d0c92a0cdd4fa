"""Message and Origin: a routed message, and where it entered this node."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ockam.actors.address import Address, Route
from ockam.errors import InvalidMessage
from ockam.identity.identity import ANONYMOUS, NODE, Identity
from ockam.quotas.memory import UNCOUNTED, Holdings
from ockam.quotas.usage import UNLIMITED, Usage, party_key


class Origin(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Where a message entered this node. The node sets the origin; a peer cannot choose it.

    kind: "local" for a worker of this node, "tcp" for a connection, "channel" for a secure channel.
    hops: the nodes between the connection and the other side of a channel.
    peer: the `host:port` of the other side, for logs. identity: the identity that the other side has proved.
    frame_bytes_max: the largest frame that can carry an answer, in bytes.
    backlog_bytes: returns the unsent bytes for the other side. Above `backlog_bytes_max()`, no answer should be sent.
    holdings: the memory that this node uses for the other side.
    usage: what all connections of the same identity use together, and the limits of the identity.
    channel: the memory of the channel itself; None for a connection.
    below: returns the origin of the messages that carry the channel at present, because a channel can move to another
        connection; None for a connection."""

    kind: str
    peer: str = ""
    identity: Identity = ANONYMOUS
    frame_bytes_max: int = 16 * 1024 * 1024
    backlog_bytes: Callable[[], int] = lambda: 0
    backlog_bytes_max: Callable[[], int] = lambda: 1 << 62
    holdings: Holdings = UNCOUNTED
    usage: Usage = UNLIMITED
    hops: int = 0
    channel: Holdings | None = None
    below: Callable[[], Origin] | None = None

    @property
    def party(self) -> str:
        """The key by which the sender is counted, for example for limits. A channel whose identity is not trusted is
        counted by its connection, because its owner can make more identities."""
        return self.usage.key if self.usage is not UNLIMITED else party_key(self.identity, self.peer)

    @property
    def is_node(self) -> bool:
        """Whether the node itself sends the message. Otherwise the sender's rights must be checked."""
        return self.kind == "local" and self.identity.source == "local"

    @property
    def lifetime(self) -> Holdings:
        """The memory that is freed when the client leaves: that of its channel if the channel leads through other
        nodes, otherwise that of its connection."""
        return self.channel if self.channel is not None and self.hops else self.holdings

    @property
    def has_ended(self) -> bool:
        """Whether the client's connection has ended. A channel through other nodes can outlive its connection."""
        return self.holdings.has_ended and not self.hops

    @property
    def connection(self) -> Origin:
        """The origin of the connection at present, below all channels."""
        return self if self.below is None else self.below().connection

    @property
    def who(self) -> dict[str, str]:
        return {"peer": self.peer, "identity": str(self.identity)}

    def is_behind(self, backlog_bytes_max: int) -> bool:
        """Whether more bytes wait for the other side than `backlog_bytes_max`, or than its own limit of this name."""
        return self.backlog_bytes() > min(backlog_bytes_max, self.backlog_bytes_max())


HERE = Origin("local", identity=NODE)
"""The origin of messages from this node's own workers."""


class Message(msgspec.Struct, gc=False, eq=False):
    """A routed message, which never changes after it was sent. onward_route: the remaining hops to the receiver."""

    onward_route: Route
    return_route: Route
    payload: bytes
    origin: Origin = HERE


def check_message(message: Message) -> None:
    """Raises InvalidMessage if the payload is not bytes or a hop of a route is not an Address."""
    if message.payload.__class__ is not bytes:
        raise InvalidMessage(f"a payload is bytes, and not {message.payload!r:.100}; encode it, such as text.encode()")
    for hop in message.onward_route:
        if hop.__class__ is not Address:
            raise _not_a_route(message.onward_route)
    for hop in message.return_route:
        if hop.__class__ is not Address:
            raise _not_a_route(message.return_route)


def _not_a_route(route: Route) -> InvalidMessage:
    return InvalidMessage(f"a route is a tuple of addresses, such as (local(NAME),), and not {route!r:.100}")


def signed(message: Message, origin: Origin) -> Message:
    """Returns a worker's message with the worker's origin. A message that the worker only passes on keeps its own."""
    return message if message.origin is not HERE else msgspec.structs.replace(message, origin=origin)


def reply_to(message: Message, worker: Address, payload: bytes) -> Message:
    """Returns an answer to `message` along its return route. The answer's own return route is `worker`."""
    return Message(message.return_route, (worker,), payload)
