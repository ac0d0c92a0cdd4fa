"""One publisher's session as a worker with its own address: reads the publisher's messages, and sends answers.

`session_machine` decides which message is permitted in which state, `publish_machine` decides the answers. To stop
reading from a publisher, the worker pauses its mailbox. The mailbox then fills, and its connection stops reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_header
from block_node.persist.schema import NUMBER_MAX
from block_node.protocol import (
    PUBLISH,
    BlockItems,
    DuplicateBlock,
    EndOfBlock,
    EndStream,
    OpenRootSession,
    OpenSession,
    Piece,
    PublishRequest,
    PublishResponse,
    PublishStatus,
    SessionOpened,
    StreamEnded,
)
from block_node.publish.runner import PublishRunner
from block_node.publish.session_machine import Action, InvalidPublishRequest, MessageMissing, PublisherState
from ockam.actors.address import LOCAL, Address, Route
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError

HEADER_TAG = bytes((ItemKind.HEADER << 3 | 2,))
"""The first byte of a serialized block header. No other block item begins with this byte."""

logger = structlog.get_logger(__name__)


class PublishSession(Worker):
    """The worker of one publisher's session. When the publisher or the node ends the stream, its address becomes free
    again. Until then, the session counts for the identity that opened it.

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
        self.token = request.token
        self.publisher = PublisherState(publisher_id, isinstance(request, OpenRootSession), runner.now_s())
        self.route: Route = opening.return_route
        self.peer = opening.origin.peer
        self._usage = opening.origin.usage
        self._node = node
        self._chain = chain
        self._runner = runner
        self._machine = runner.machine
        self._now_s = runner.now_s
        self._slice_bytes_max = runner.limits.slice_bytes_max
        self._held_run: Sequence[Message] = ()
        self._is_over = False

    @property
    def reachable(self) -> bool:
        """Whether the connection to the publisher still exists. True for a route that does not begin locally."""
        return self.route[0].type != LOCAL or self._node.is_registered(self.route[0])

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
            self._end(PublishStatus.ERROR, block_number, "the node failed on this stream; open another one")

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
                self._end(PublishStatus.INVALID_REQUEST, self.publisher.session.block_number, str(error))
            except (ProtocolError, MessageMissing) as error:
                self._end(PublishStatus.ERROR, self.publisher.session.block_number, str(error))

    # Calls from the service and the runner.

    def respond(self, response: PublishResponse) -> None:
        if isinstance(response, DuplicateBlock) and self._runner.mending.takes(self, response.block_number):
            # The answer follows when the block has come and is stored again (`mended`).
            return
        self.context.send(Message(self.route, (self.context.address,), PUBLISH.encode_response(response)))

    def close(self, ended: StreamEnded | None) -> None:
        """Ends the session, with the last answer if there is one. Safe to repeat."""
        # The quota is given back once, also if the session ends twice.
        if not self._is_over:
            self._usage.give_back("block_publish_sessions_max")
        self._is_over = True
        self._runner.mending.leave(self)
        if ended is not None:
            status, number = ended.status.name, ended.block_number
            logger.info("block_stream_ended", peer=self.peer, status=status, block=number, reason=ended.reason)
            self.respond(ended)
        self._node.unregister(self.context.address)

    def mended(self, block_number: int) -> None:
        """Answers a duplicate whose block was taken, because its stored bytes were damaged or gone."""
        last_block = self._machine.last_block
        if last_block is not None:
            self.respond(DuplicateBlock(block_number, last_block))

    def not_mended(self, status: PublishStatus, block_number: int, reason: str) -> None:
        """Ends the stream, because the block that was taken again is not the stored one, or cannot be stored."""
        self._end(status, block_number, reason)

    def leave(self) -> None:
        logger.warning("block_publisher_lost", peer=self.peer, block=self.publisher.session.block_number)
        self._machine.leave(self.publisher, self._now_s())
        self._runner.perform()

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
            self._take_items(request)
        elif isinstance(request, EndOfBlock):
            self._take_block_end(request.block_number)
        else:
            self._take_stream_end(request)
        self._runner.perform()

    def _take_items(self, request: BlockItems) -> None:
        items, piece = request.items, request.piece
        # A set without items says nothing, and a piece beside other items would leave their order open.
        if not items:
            raise InvalidPublishRequest("a set of items is empty")
        if piece is not Piece.WHOLE and len(items) != 1:
            raise InvalidPublishRequest("a message with a piece of an item has that piece alone")
        # A middle or last piece may begin like a header by chance.
        if (piece is Piece.WHOLE or piece is Piece.FIRST) and items[0].startswith(HEADER_TAG):
            number, mending, last_block = (
                _header_number(items[0], piece),
                self._runner.mending,
                self._machine.last_block,
            )
            # A header ends the mending of another block. A duplicate of a damaged block is collected, to be stored
            # again.
            mending.leave(self)
            if last_block is not None and number <= last_block and mending.wants(number):
                mending.begin(self, number, items)
            self._machine.header(self.publisher, number, items, self.publisher.used_s)
        else:
            self._machine.items(self.publisher, items, piece, self.publisher.used_s)
            self._runner.mending.add(self, items, piece)

    def _take_block_end(self, block_number: int) -> None:
        current = self.publisher.session.block_number
        action = self._machine.block_end(self.publisher, block_number, self._now_s())
        # An end out of place does no harm, so it is only logged.
        if action in (Action.NOTE, Action.COMPLETE_AND_NOTE):
            logger.info("block_end_out_of_place", peer=self.peer, block=block_number, receiving=current)
        self._runner.mending.finish(self)

    def _take_stream_end(self, end: EndStream) -> None:
        current = self.publisher.session.block_number
        logger.info("block_publisher_ended", peer=self.peer, code=end.code.name, block=current)
        self._machine.stream_end(self.publisher, end, self._now_s())

    def _end(self, status: PublishStatus, block_number: int | None, reason: str) -> None:
        self._machine.end(self.publisher, status, block_number, reason, self._now_s())
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


def _header_number(header: bytes, piece: Piece) -> int:
    """Returns the block number in a header. Raises InvalidPublishRequest if the header is in pieces, cannot be decoded
    or has too high a number, ProtocolError if it is empty."""
    if piece is not Piece.WHOLE:
        raise InvalidPublishRequest("a header comes whole")
    if len(header) == len(HEADER_TAG) + 1 and not header[-1]:
        raise ProtocolError("the header is empty")
    try:
        item_kind(header)
        number = read_header(header).number
    except BlockFormatError as error:
        raise InvalidPublishRequest(f"the header cannot be decoded: {error}") from error
    if number > NUMBER_MAX:
        raise InvalidPublishRequest(f"the number {number} of the block is above {NUMBER_MAX}, the highest one")
    return number


def session_address(name: str) -> Address:
    return Address(LOCAL, f"block_publish_{name}".encode())
