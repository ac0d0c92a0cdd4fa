"""Passing: passes the pushes that a mirror gets on to its source, and the answers back (`mirror_passes_pushes`).
The source answers by the return route of the push, in which this worker stands before the route of the publisher. So
nothing is remembered about a push: one that the source does not answer is not answered here, and its publisher sends it
again, as after every loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ockam.actors.address import tcp
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import NOTHING, Demand, Right
from ockam.protocol import ProtocolError
from ockam.transport.forwarding import OpenRequests
from stream_node.fleet.mirror.mirror import Identity
from stream_service.extensions import RICH_PUSH
from stream_service.mirror_rows import MirrorRow
from stream_service.names import stream_address
from stream_service.protocol import PUSH
from stream_service.push_batch import PUSH_BATCH

TAGS = (PUSH.tag, PUSH_BATCH.tag, RICH_PUSH.tag)
BACKLOG_BYTES_MAX = 4 * 1024 * 1024
"""The backlog of a source above which the mirror refuses pushes, as it does without this module."""


class Passing(Worker):
    """Passes pushes on, under the name of this node."""

    def __init__(self, node: Node, find_source: Callable[[Identity], MirrorRow | None]) -> None:
        self._node = node
        self._find_source = find_source
        # By the `host:port` of a source: whose pushes went there, and the connection through which it answers.
        self._senders: dict[str, OpenRequests] = {}
        self._ways: dict[str, Origin] = {}

    def pass_on(self, identity: Identity, run: Sequence[Message]) -> Sequence[Message]:
        """Passes those pushes on that may go to the source of a mirror. Returns the other messages, in order."""
        row = self._find_source(identity)
        if row is None:
            return run
        # A source that reads slower than the publishers push must not fill the memory of this node.
        way = self._ways.get(row.source)
        if way is not None and way.is_behind(BACKLOG_BYTES_MAX):
            return run
        passed: list[Message] = []
        kept: list[Message] = []
        for message in run:
            (passed if self._may_pass(message, identity[0], row.source_name) else kept).append(message)
        # The sender is remembered before its push leaves, since only senders get answers.
        self._senders.setdefault(row.source, OpenRequests()).note(passed)
        onward = (tcp(row.source), stream_address(row.source_name, identity[1]))
        back = (self.context.address, stream_address(*identity))
        self.context.send_run([Message(onward, (*back, *each.return_route), each.payload) for each in passed])
        return kept

    def demand(self, message: Message) -> Demand | None:
        """Returns the right that the sender needs: only sources answer here."""
        return NOTHING if message.origin.peer in self._senders else None

    def handle(self, message: Message) -> None:
        source, route = message.origin.peer, message.onward_route[1:]
        # A source may answer only those whose pushes it has got. Otherwise it could send anything to any worker here.
        if len(route) < 2 or source not in self._senders or not self._senders[source].is_sender(route[1]):
            return
        self._ways[source] = message.origin
        self.context.send(Message(route[1:], (route[0],), message.payload))

    def _may_pass(self, message: Message, name: str, source_name: str) -> bool:
        """Whether a message is a push whose sender may push to the source, and that has not been here before."""
        gate = self._node.gate
        return (
            message.payload.startswith(TAGS)
            and bool(message.return_route)
            and self.context.address not in message.return_route
            and (gate is None or name == source_name or gate.holds(message.origin, Right.WRITE, source_name))
            and (gate is None or not _has_number(message.payload))
        )


def _has_number(payload: bytes) -> bool:
    """Whether a push has a sequence number.
    Its publisher id belongs to an identity, and at the source all senders are one: that of this node."""
    try:
        return payload.startswith(RICH_PUSH.tag) and RICH_PUSH.decode_request(payload).sequence is not None
    except ProtocolError:
        return False
