"""One publisher's session as a worker with its own address: reads the publisher's messages, and sends answers.

`session_machine` decides which message is permitted in which state, `publish_machine` decides the answers. To stop
reading from a publisher, the worker pauses its mailbox. The mailbox then fills, and its connection stops reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from block_node.protocol import (
    PUBLISH,
    BlockItems,
    EndOfBlock,
    OpenRootSession,
    OpenSession,
    PublishRequest,
    PublishResponse,
    PublishStatus,
    SessionOpened,
    StreamEnded,
)
from block_node.publish.runner import PublisherSession, PublishRunner
from block_node.publish.session_machine import InvalidPublishRequest, MessageMissing, PublisherState
from ockam.actors.address import LOCAL, Route
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError


class PublishSession(PublisherSession, Worker):
    """The worker of one publisher's session. When the publisher or the node ends the stream, its address becomes free
    again.

    Invariant: while `publisher.is_held` is True, the mailbox is paused, and `_held_run` has the messages that were
    delivered but not handled.
    """

    def __init__(
        self,
        publisher_id: int,
        opening: Message,
        request: OpenSession | OpenRootSession,
        node: Node,
        runner: PublishRunner,
        chain: str = "blocks",
    ) -> None:
        peer, wants_roots = opening.origin.peer, isinstance(request, OpenRootSession)
        publisher = PublisherState(publisher_id, wants_roots, runner.now_s(), f"Ockam {peer}")
        super().__init__(publisher, runner, opening.origin.usage, peer)
        self.token = request.token
        self.route: Route = opening.return_route
        self._origin = opening.origin
        self._node = node
        self._chain = chain
        self._now_s = runner.now_s
        self._slice_bytes_max = runner.limits.slice_bytes_max
        self._held_run: Sequence[Message] = ()

    @property
    def reachable(self) -> bool:
        """Whether the connection to the publisher still exists. True for a route that does not begin locally."""
        # A secure channel, which the route then begins with, outlives its connection for a while.
        return not self._origin.has_ended and (self.route[0].type != LOCAL or self._node.is_registered(self.route[0]))

    def started(self) -> None:
        # After a crash, the node starts the worker again. The session is over then: its block was given up, and its
        # publisher was notified.
        if not self._is_over:
            self._runner.join(self)
            self.opened()

    def stopped(self) -> None:
        # After a crash too, the incomplete block is given up and the address becomes free.
        if not self._is_over:
            block_number = self.publisher.session.block_number
            self.end(PublishStatus.ERROR, block_number, "the node failed on this stream; open another one")

    def opened(self) -> None:
        """Answers the opening message. The publisher can repeat that message, and every copy is answered."""
        self.respond(SessionOpened(self.token, self._machine.last_block, self._machine.blocks.next_block))

    def demand(self, message: Message) -> Demand | None:
        """Only the publisher that opened the session may use it, through the same connection."""
        return Demand(Right.BLOCK_PUBLISH, self._chain) if message.return_route[:1] == self.route[:1] else None

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        last_block = self._machine.last_block
        return PUBLISH.encode_response(StreamEnded(PublishStatus.ERROR, last_block, None, reason))

    # Every message shows that the publisher is alive, also one that must wait.
    def receive(self, run: Sequence[Message]) -> None:
        self.publisher.used_s = self._now_s()
        slice_bytes = 0
        for position, message in enumerate(run):
            self._origin = message.origin
            # An earlier message may have ended the stream.
            if self._is_over:
                return
            if not self._runner.may_read(self.publisher):
                self._hold(run[position:])
                return
            if slice_bytes >= self._slice_bytes_max:
                # Other workers of the node run before the remaining messages are handled.
                self._hold(run[position:])
                self.context.call_later(0, self._read_on)
                return
            slice_bytes += len(message.payload)
            try:
                self._take(PUBLISH.decode_request(message.payload))
            except InvalidPublishRequest as error:
                self.end(PublishStatus.INVALID_REQUEST, self.publisher.session.block_number, str(error))
            except (ProtocolError, MessageMissing) as error:
                self.end(PublishStatus.ERROR, self.publisher.session.block_number, str(error))

    # Calls from the service and the runner.

    def _answer(self, response: PublishResponse) -> None:
        self.context.send(Message(self.route, (self.context.address,), PUBLISH.encode_response(response)))

    def _closed(self, ended: StreamEnded | None) -> None:
        if ended is not None:
            self._answer(ended)
        self._node.unregister(self.context.address)

    def admit(self) -> None:
        if self.publisher.is_held:
            self.publisher.is_held = False
            self.context.call_later(0, self._read_on)

    # The path of a message.

    def _take(self, request: PublishRequest) -> None:
        """Handles one message. Raises InvalidPublishRequest, ProtocolError or MessageMissing for a wrong one."""
        if isinstance(request, OpenSession | OpenRootSession):
            raise InvalidPublishRequest("a session is opened at the service's address")
        # A repeated message is ignored. A message after a gap cannot be used.
        if not self.publisher.session.in_order(request.sequence):
            return
        if isinstance(request, BlockItems):
            self.items(request.items, request.piece)
        elif isinstance(request, EndOfBlock):
            self.block_end(request.block_number)
        else:
            self.stream_end(request)
        self._runner.perform()

    def _hold(self, run: Sequence[Message]) -> None:
        self.publisher.is_held = True
        self._held_run = run
        self.context.pause()

    def _read_on(self) -> None:
        self.publisher.is_held = False
        run, self._held_run = self._held_run, ()
        if not self._is_over:
            self.context.resume()
            self.receive(run)
