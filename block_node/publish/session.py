"""One publisher's session as a worker with an address of its own: its messages in, the desk's answers out.

What may come when is `block_node.publish.session_machine`'s business, what is answered the desk's. A publisher whom the
desk does not want to read is held: the worker pauses its mailbox, the mailbox fills, and the connection that feeds it
stops reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_header
from block_node.protocol import (
    PUBLISH,
    BlockItems,
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
from block_node.publish.decision import Verdict
from block_node.publish.desk import PublishDesk
from block_node.publish.session_machine import Action, Input, MessageMissing, SessionMachine, State
from ockam.address import LOCAL, Address, Route
from ockam.message import Message
from ockam.node import Node
from ockam.protocol import ProtocolError
from ockam.worker import Worker

HEADER_TAG = bytes((ItemKind.HEADER << 3 | 2,))
"""How a serialized header begins; no other item begins so."""

logger = structlog.get_logger(__name__)


class RequestRefused(Exception):
    """The publisher sent what the protocol does not allow here; the stream ends with INVALID_REQUEST."""


class PublishSession(Worker):
    """Serves one publisher until either side ends the stream, after which its address is free.

    route: the way back to the publisher. now_s: the clock of the desk. See `block_node.publish.publisher.Publisher`
    for the other public attributes.
    Invariant: the mailbox is paused and `_held_run` is what is left of the last run exactly while `held`.
    """

    def __init__(
        self,
        session_id: int,
        opening: Message,
        request: OpenSession | OpenRootSession,
        node: Node,
        desk: PublishDesk,
        now_s: Callable[[], float],
        slice_bytes_max: int,
    ) -> None:
        self.session_id = session_id
        self.token = request.token
        self.wants_roots = isinstance(request, OpenRootSession)
        self.route: Route = opening.return_route
        self.peer = opening.origin.peer
        self.newest_offered = -1
        self.behind: int | None = None
        self.cursor = -1
        self.held = False
        self.used_s = self.asked_s = now_s()
        self._node = node
        self._desk = desk
        self._now_s = now_s
        self._slice_bytes_max = slice_bytes_max
        self._machine = SessionMachine()
        self._in_item = False
        self._held_run: Sequence[Message] = ()
        self._gone = False

    @property
    def receiving(self) -> int | None:
        return self._machine.block_number

    @property
    def reachable(self) -> bool:
        """Whether the connection is there that the way back begins with."""
        return self.route[0].type != LOCAL or self._node.is_registered(self.route[0])

    def started(self) -> None:
        if self._gone:
            return
        self._desk.join(self)
        self.opened()

    def stopped(self) -> None:
        """However the worker ends, a crash included, its blocks go back and its address is free."""
        if not self._gone:
            self.end(PublishStatus.ERROR, self.receiving, "the node failed on this stream; open another one")

    def opened(self) -> None:
        """Answer the opening message; it may have come again."""
        self.tell(SessionOpened(self.token, self._desk.last_block, self._desk.next_block))

    def receive(self, run: Sequence[Message]) -> None:
        self.used_s = self._now_s()
        slice_bytes = 0
        for position, message in enumerate(run):
            if self._gone:
                return
            if not self._desk.may_read(self):
                self._hold(run[position:])
                return
            if slice_bytes >= self._slice_bytes_max:
                self._hold(run[position:])
                self.context.call_later(0, self._read_on)
                return
            slice_bytes += len(message.payload)
            try:
                self._take(PUBLISH.decode_request(message.payload))
            except RequestRefused as error:
                self.end(PublishStatus.INVALID_REQUEST, self.receiving, str(error))
            except (ProtocolError, MessageMissing) as error:
                self.end(PublishStatus.ERROR, self.receiving, str(error))

    # What the desk does.

    def tell(self, response: PublishResponse) -> None:
        self.context.send(Message(self.route, (self.context.address,), PUBLISH.encode_response(response)))

    def end(self, status: PublishStatus, block_number: int | None, reason: str) -> None:
        if self._gone:
            return
        logger.info("block_stream_ended", peer=self.peer, status=status.name, block=block_number, reason=reason)
        self.tell(StreamEnded(status, self._desk.last_block, block_number, reason))
        self.leave()

    def leave(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._machine.take(Input.FAULT)
        self._desk.leave(self)
        self._node.unregister(self.context.address)

    def taken_away(self) -> None:
        self._machine.take(Input.TAKEN_AWAY)
        self._in_item = False

    def admit(self) -> None:
        if self.held:
            self.held = False
            self.context.call_later(0, self._read_on)

    # The path of a message.

    def _take(self, request: PublishRequest) -> None:
        if isinstance(request, OpenSession | OpenRootSession):
            raise RequestRefused("a session is opened at the service's address")
        if not self._machine.in_order(request.sequence):
            return
        if isinstance(request, BlockItems):
            self._take_items(request)
        elif isinstance(request, EndOfBlock):
            self._take_block_end(request.block_number)
        else:
            self._take_stream_end(request)

    def _take_items(self, request: BlockItems) -> None:
        """Raises RequestRefused, ProtocolError."""
        items, piece = request.items, request.piece
        if not items:
            raise RequestRefused("a set of items is empty")
        if piece is not Piece.WHOLE and len(items) != 1:
            raise RequestRefused("a message with a piece of an item has that piece alone")
        begins_item = piece in (Piece.WHOLE, Piece.FIRST)
        if begins_item and items[0].startswith(HEADER_TAG):
            self._offer(items, piece)
            return
        block_number = self.receiving
        if self._machine.state is State.RECEIVING and begins_item == self._in_item:
            raise RequestRefused("the pieces of an item do not follow each other")
        action = self._machine.take(Input.ITEMS)
        if action is Action.REFUSE_REQUEST:
            raise RequestRefused("items came before a header")
        if action is Action.ADD and block_number is not None:
            self._in_item = piece in (Piece.FIRST, Piece.MIDDLE)
            self._desk.add(self, block_number, items, piece)

    def _offer(self, items: list[bytes], piece: Piece) -> None:
        """A header has come, with the items behind it in its message. Raises RequestRefused, ProtocolError."""
        if piece is not Piece.WHOLE:
            raise RequestRefused("a header comes whole")
        if len(items[0]) == len(HEADER_TAG) + 1 and not items[0][-1]:
            raise ProtocolError("the header is empty")
        try:
            item_kind(items[0])
            number = read_header(items[0]).number
        except BlockFormatError as error:
            raise RequestRefused(f"the header cannot be decoded: {error}") from error
        current = self.receiving
        action = self._machine.header(number)
        self._in_item = False
        if action is Action.DISCARD:
            return
        if action is Action.BEGIN_ANEW:
            self._desk.begin_anew(self, number)
            if self.receiving == number:
                self._desk.add(self, number, items, piece)
            return
        if action is Action.GIVE_BACK_AND_OFFER and current is not None:
            self._desk.give_back(self, current, f"its publisher went on with block {number}")
        if self._gone:
            return
        if self._desk.offer(self, number) is Verdict.ACCEPT:
            self._machine.take(Input.ACCEPTED, number)
            self._desk.add(self, number, items, piece)
        elif not self._gone:
            self._machine.take(Input.REFUSED)
        if action is Action.GIVE_BACK_AND_OFFER:
            self._desk.go_on()

    def _take_block_end(self, block_number: int) -> None:
        """Raises RequestRefused."""
        current = self.receiving
        if current is not None and self._in_item:
            raise RequestRefused(f"block {current} ends in the middle of an item")
        action = self._machine.block_end(block_number)
        if action in (Action.NOTE, Action.COMPLETE_AND_NOTE):
            logger.info("block_end_out_of_place", peer=self.peer, block=block_number, receiving=current)
        if action in (Action.COMPLETE, Action.COMPLETE_AND_NOTE) and current is not None:
            self._desk.complete(self, current)

    def _take_stream_end(self, end: EndStream) -> None:
        logger.info("block_publisher_ended", peer=self.peer, code=end.code.name, block=self.receiving)
        self._desk.publisher_ended(self, end)
        self.leave()

    def _hold(self, run: Sequence[Message]) -> None:
        self.held = True
        self._held_run = run
        self.context.pause()

    def _read_on(self) -> None:
        self.held = False
        run, self._held_run = self._held_run, ()
        if not self._gone:
            self.context.resume()
            self.receive(run)


def session_address(name: str) -> Address:
    """Where the session of that random name lives."""
    return Address(LOCAL, f"block_publish_{name}".encode())
