"""ForwardFilter: decides which messages of other peers may leave this node over one connection.

It drops three kinds of messages. It answers a sender that understands an answer (`forwarding.reports_to_sender`):
- a message that has passed through this node before: nodes that forward to each other would send it forever
- a message that another node has passed on, while too much waits: if this node waited, two nodes could block each other
- an authentication of another peer, because the next node would take it for one of this node"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from ockam.actors.address import Route
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.identity.authentication import has_authentication_beyond
from ockam.transport.forwarding import forward_refused, has_looped, is_passed_on, reports_to_sender

CIRCLE = "forward_circle", "it has passed through this node before"
FULL = "forward_full", "too much waits for that node already; ask again later"
AUTHENTICATION = "forward_authentication", "an authentication is for the node at the other end of its own connection"

logger = structlog.get_logger(__name__)


class ForwardFilter:
    """The filter of one connection (peer: its `host:port`). It logs the first dropped message of each kind."""

    __slots__ = ("_node", "_peer", "_reported")

    def __init__(self, node: Node, peer: str) -> None:
        self._node = node
        self._peer = peer
        self._reported: set[str] = set()

    def passed(self, run: Iterable[Message], *, is_full: bool) -> list[Message]:
        """Returns those messages that may leave, in order. Counts and answers the others. is_full: whether messages
        that another node has passed on are refused, because too much waits for the peer."""
        passed: list[Message] = []
        onward: Route | None = None
        back: Route | None = None
        why: tuple[str, str] | None = None
        for message in run:
            # Most messages of a run have the same routes, which are checked once.
            if message.return_route is not back or message.onward_route is not onward:
                onward, back = message.onward_route, message.return_route
                # An authentication must never leave, so it is checked first.
                if has_authentication_beyond(onward):
                    why = AUTHENTICATION
                else:
                    why = CIRCLE if has_looped(back, self._node.is_registered) else None
                    if why is None and is_full and is_passed_on(back):
                        why = FULL
            if why is None:
                passed.append(message)
            else:
                self._refuse(message, *why)
        return passed

    def _refuse(self, message: Message, counter: str, reason: str) -> None:
        self._node.count_drop(counter)
        if counter not in self._reported:
            self._reported.add(counter)
            logger.warning("forward_refused", reason=reason, **message.origin.who, to=self._peer)
        if reports_to_sender(message):
            self._node.send(forward_refused(message, reason))
