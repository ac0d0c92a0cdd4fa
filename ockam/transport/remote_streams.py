"""RemoteStreams: the streams of a cluster that other nodes serve, and the links to these nodes. Only interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ockam.actors.address import Address
from ockam.actors.message import Message
from ockam.transport.forwarding import OpenRequests


class RemoteStreams(Protocol):
    """Tells which streams other nodes serve, and sends messages to these nodes. name: the name of this node."""

    name: str

    def is_remote(self, stream: Address) -> bool: ...

    def send(self, stream: Address, message: Message) -> None:
        """Sends a message to the node that serves the stream, once a node does, in the order of the calls."""
        ...

    def home_of(self, stream_name: str) -> Address:
        """Returns the address of the first partition of a stream. The node that serves this partition also serves the
        positions and leases of the stream's consumers."""
        ...

    def served_since_s(self, stream: Address) -> float: ...

    def owner_of(self, stream: Address) -> tuple[str, int]:
        """Returns the `host:port` of another node that serves a stream, or "", and the epoch of its ownership."""
        ...

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        """Sends a request to the worker of every node with a database of its own, if there are several; else returns
        False. on_done: called once with the payloads of the answers, or with None if one does not come in time."""
        ...


class LinkEnd(Protocol):
    def receive(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Takes the messages that arrived. Returns those that the node delivers, as messages of its own."""
        ...

    def ended(self, requests: OpenRequests) -> None:
        """Called when the connection has ended. requests: the unanswered requests that were forwarded over it."""
        ...
