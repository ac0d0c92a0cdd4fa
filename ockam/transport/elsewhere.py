"""Elsewhere: the streams of a cluster that other nodes serve, and the links to these nodes. Only interfaces.

The package `stream_node.fleet.cluster` implements both. The services ask an `Elsewhere` where a stream is served;
without a cluster there is none. A connection gives a `LinkEnd` what arrives from another member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.transport.forwarding import OpenRequests


class Elsewhere(Protocol):
    """Tells which streams this node does not serve, and sends messages to the nodes that serve them. name: that of this
    node, or worker."""

    name: str

    def is_elsewhere(self, stream: Address) -> bool:
        """Whether this node does not serve the stream at this address now."""
        ...

    def send(self, stream: Address, message: Message) -> None:
        """Sends a message to the node that serves a stream, in the order of the calls for this stream. The message
        waits while no node does.

        stream: the address of the stream. message: its route goes on at that node, to the stream or another worker.
        """
        ...

    def home_of(self, stream_name: str) -> Address:
        """Returns the address of the first partition of a stream. Its node keeps the consumers of the stream."""
        ...

    def served_since_s(self, stream: Address) -> float:
        """Returns the time from which on this node serves a stream, on trio's clock."""
        ...

    def owner_of(self, stream: Address) -> tuple[str, int]:
        """Returns the `host:port` of the node that serves a stream, and the epoch of its ownership. The `host:port` is
        empty if this node serves the stream, or if no node does now."""
        ...

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        """Sends a request to every node that has streams in a database of its own, also to this one.

        message: its next hop is a worker that all these nodes have.
        on_done: called once with the payloads of the answers, or with None if a node does not answer in time.
        Returns False, and does nothing, if all nodes have the same database.
        """
        ...


class LinkEnd(Protocol):
    """This node's end of a connection that it has made to another member of its cluster."""

    def receive(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Takes the messages that arrived. Returns those that the node delivers, as messages of its own."""
        ...

    def ended(self, requests: OpenRequests) -> None:
        """Called when the connection has ended. requests: what was forwarded over it."""
        ...
