"""The sessions of publishers: a session hands the requests of one publisher to the publish machine, and to the mending
of blocks, and sends the answers.

To stop reading from a publisher over Ockam routes, its worker pauses its mailbox. The mailbox then fills, and its
connection stops reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
import trio

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
from block_node.publish.session_machine import Action, InvalidPublishRequest, MessageMissing, PublisherState
from ockam.actors.address import LOCAL, Route
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right
from ockam.protocol import ProtocolError
from ockam.quotas.usage import Usage

if TYPE_CHECKING:
    from block_node.publish.service import PublishService

HEADER_TAG = bytes((ItemKind.HEADER << 3 | 2,))
"""The first byte of a serialized block header. No other block item begins with this byte."""

logger = structlog.get_logger(__name__)


class PublisherSession:
    """The session of one publisher of any protocol. A subclass reads the protocol, and writes the answers. The session
    counts for an identity, by `usage`, until it is closed. peer: the publisher in the log.

    The caller calls `PublishService.perform` after `items`, `block_end` and `stream_end`.
    """

    def __init__(self, publisher: PublisherState, service: PublishService, usage: Usage, peer: str) -> None:
        self.publisher = publisher
        self.peer = peer
        self._service = service
        self._machine = service.machine
        self._usage = usage
        self._is_over = False

    # To be defined by the subclass.

    @property
    def reachable(self) -> bool:
        """Whether the connection to the publisher still exists."""
        raise NotImplementedError

    def admit(self) -> None:
        """Continues to read from the publisher, if the session is held."""
        raise NotImplementedError

    def _answer(self, response: PublishResponse) -> None:
        raise NotImplementedError

    def _closed(self, ended: StreamEnded | None) -> None:
        """Sends the last answer, if any, and ends the connection with the publisher."""
        raise NotImplementedError

    # Requests.

    def items(self, items: list[bytes], piece: Piece = Piece.WHOLE) -> None:
        """Handles items of a block, the first of which may be a header. Raises InvalidPublishRequest, ProtocolError."""
        # A set without items says nothing, and a piece beside other items would leave their order open.
        if not items:
            raise InvalidPublishRequest("a set of items is empty")
        if piece is not Piece.WHOLE and len(items) != 1:
            raise InvalidPublishRequest("a message with a piece of an item has that piece alone")
        mending = self._service.mending
        # A middle or last piece may begin like a header by chance.
        if (piece is Piece.WHOLE or piece is Piece.FIRST) and items[0].startswith(HEADER_TAG):
            number, last_block = header_number(items[0], piece), self._machine.last_block
            # A header ends the mending of another block. A duplicate of a damaged block is collected, to be stored
            # again.
            mending.leave(self)
            if last_block is not None and number <= last_block and mending.wants(number):
                mending.begin(self, number, items)
            self._machine.header(self.publisher, number, items, self.publisher.used_s)
        else:
            self._machine.items(self.publisher, items, piece, self.publisher.used_s)
            mending.add(self, items, piece)

    def block_end(self, block_number: int) -> None:
        """Handles the end of a block. Raises InvalidPublishRequest."""
        current = self.publisher.session.block_number
        action = self._machine.block_end(self.publisher, block_number, trio.current_time())
        # An end out of place does no harm, so it is only logged.
        if action in (Action.NOTE, Action.COMPLETE_AND_NOTE):
            logger.info("block_end_out_of_place", peer=self.peer, block=block_number, receiving=current)
        self._service.mending.finish(self)

    def stream_end(self, end: EndStream) -> None:
        current = self.publisher.session.block_number
        logger.info("block_publisher_ended", peer=self.peer, code=end.code.name, block=current)
        self._machine.stream_end(self.publisher, end, trio.current_time())

    # Answers.

    def respond(self, response: PublishResponse) -> None:
        # The answer to a block that is taken again follows when it is stored (`mended`).
        if not (isinstance(response, DuplicateBlock) and self._service.mending.takes(self, response.block_number)):
            self._answer(response)

    def mended(self, block_number: int) -> None:
        last_block = self._machine.last_block
        if last_block is not None:
            self.respond(DuplicateBlock(block_number, last_block))

    # The end.

    def end(self, status: PublishStatus, block_number: int | None, reason: str) -> None:
        """Ends the publisher's stream with an answer. Safe to repeat."""
        self._machine.end(self.publisher, status, block_number, reason, trio.current_time())
        self._service.perform()

    def leave(self) -> None:
        """Gives up a publisher that is gone. Safe to repeat."""
        if not self._is_over:
            logger.warning("block_publisher_lost", peer=self.peer, block=self.publisher.session.block_number)
            self._machine.leave(self.publisher, trio.current_time())
            self._service.perform()

    def close(self, ended: StreamEnded | None) -> None:
        """Ends the session, with the last answer if there is one. Safe to repeat: the quota is given back once."""
        if self._is_over:
            return
        self._is_over = True
        self._usage.give_back("block_publish_sessions_max")
        self._service.mending.leave(self)
        if ended is not None:
            self._log_end(ended)
        self._closed(ended)

    def _log_end(self, ended: StreamEnded) -> None:
        status, number = ended.status.name, ended.block_number
        logger.info("block_stream_ended", peer=self.peer, status=status, block=number, reason=ended.reason)


class PublishSession(PublisherSession, Worker):
    """The worker of one publisher's session.

    Invariant: while `publisher.is_held` is True, the mailbox is paused, and `_held_run` has the messages that were
    delivered but not handled.
    """

    def __init__(
        self, publisher_id: int, opening: Message, request: OpenSession | OpenRootSession, service: PublishService
    ) -> None:
        peer, wants_roots = opening.origin.peer, isinstance(request, OpenRootSession)
        publisher = PublisherState(publisher_id, wants_roots, trio.current_time(), f"Ockam {peer}")
        super().__init__(publisher, service, opening.origin.usage, peer)
        self.token = request.token
        self.route: Route = opening.return_route
        self._origin = opening.origin
        self._held_run: Sequence[Message] = ()

    @property
    def reachable(self) -> bool:
        """Whether the connection to the publisher still exists. True for a route that does not begin locally."""
        # A secure channel, which the route then begins with, outlives its connection for a while.
        first = self.route[0]
        return not self._origin.has_ended and (first.type != LOCAL or self._service.node.is_registered(first))

    def started(self) -> None:
        # After a crash, the node starts the worker again. The session is over then: its block was given up, and its
        # publisher was notified.
        if not self._is_over:
            self._service.join(self)
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
        return (
            Demand(Right.BLOCK_PUBLISH, self._service.store.chain)
            if message.return_route[:1] == self.route[:1]
            else None
        )

    def denied_payload(self, message: Message, reason: str) -> bytes | None:
        last_block = self._machine.last_block
        return PUBLISH.encode_response(StreamEnded(PublishStatus.ERROR, last_block, None, reason))

    # Every message shows that the publisher is alive, also one that must wait.
    def receive(self, run: Sequence[Message]) -> None:
        self.publisher.used_s = trio.current_time()
        slice_bytes = 0
        for position, message in enumerate(run):
            self._origin = message.origin
            # An earlier message may have ended the stream.
            if self._is_over:
                return
            if not self._service.may_read(self.publisher):
                self._hold(run[position:])
                return
            if slice_bytes >= self._service.limits.slice_bytes_max:
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
        self._service.node.unregister(self.context.address)

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
        self._service.perform()

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


def header_number(header: bytes, piece: Piece) -> int:
    """Returns the block number in a header. Raises InvalidPublishRequest, or ProtocolError if the header is empty."""
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
