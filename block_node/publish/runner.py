"""PublishRunner carries out the effects of the publish machine: answers to publishers, events for the plugins, log
lines. PublisherSession hands the requests of one publisher to the machine and to the mending of blocks."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_header
from block_node.events import CatchUpStalled, ItemsReceived
from block_node.facility import Facility
from block_node.persist.schema import NUMBER_MAX
from block_node.protocol import DuplicateBlock, EndStream, Piece, PublishResponse, PublishStatus, StreamEnded
from block_node.publish.effects import Effect, EndSession, LogLine, SendResponse
from block_node.publish.limits import PublishLimits
from block_node.publish.mending import Mending
from block_node.publish.publish_machine import PublishMachine
from block_node.publish.session_machine import Action, InvalidPublishRequest, PublisherState
from ockam.protocol import ProtocolError
from ockam.quotas.usage import Usage

HEADER_TAG = bytes((ItemKind.HEADER << 3 | 2,))
"""The first byte of a serialized block header. No other block item begins with this byte."""

logger = structlog.get_logger(__name__)


class PublishRunner:
    """Connects the publish machine with the sessions, the clock and the facility. After every change of the machine,
    the caller calls `perform`. `call_later` is that of the service's worker. If that worker fails, its scheduled calls
    are lost, and the next tick of the new worker makes up for them.

    unread_bytes: the total size of the requests that sessions have not handed on completely."""

    def __init__(
        self,
        machine: PublishMachine,
        facility: Facility,
        limits: PublishLimits,
        now_s: Callable[[], float],
        mending: Mending,
    ) -> None:
        self.machine = machine
        self.mending = mending
        self.limits = limits
        self.now_s = now_s
        self.call_later: Callable[[float, Callable[[], None]], None] = lambda delay_s, function: None
        self._facility = facility
        self._sessions: dict[int, PublisherSession] = {}
        self._performing = self._waits_for_room = self._is_resting = False
        self._forwarded_items = 0
        self.unread_bytes = 0

    def sessions(self) -> list[PublisherSession]:
        return list(self._sessions.values())

    def join(self, session: PublisherSession) -> None:
        self._sessions[session.publisher.publisher_id] = session
        self.machine.join(session.publisher)
        self.perform()

    def may_read(self, publisher: PublisherState) -> bool:
        """Whether to continue reading from this publisher. If not, the session stops until `admit` is called."""
        return self.machine.may_read(publisher, self._has_room)

    def may_begin(self, publisher: PublisherState) -> bool:
        """Whether to take a request, perhaps a large one, from this publisher: not while `unread_bytes` has reached its
        limit, except for the block that all others wait for."""
        blocks = self.machine.blocks
        has_place = self.unread_bytes < self.limits.queued_bytes_max or blocks.has_gap
        return (has_place or publisher.session.block_number == blocks.next_to_verify) and self.may_read(publisher)

    def may_go_on(self, publisher: PublisherState) -> bool:
        """Whether to hand on more of a request that was handed on in part. While the plugins are full, its other items
        stay in the request, so that they are in memory only once."""
        if self._facility.full:
            self._wait_for_room()
            return False
        return self.may_read(publisher)

    def perform(self) -> None:
        """Carries out all effects, forwards items to the plugins, and lets sessions read again. A plugin can answer an
        effect at once with another change, which calls `perform` again. The inner call does nothing, and the outer call
        carries out the new effects. So all effects happen in the order in which the machine listed them."""
        if self._performing:
            return
        machine = self.machine
        self._performing = True
        self._forwarded_items = 0
        try:
            while True:
                # Effects are carried out before forwarding: an effect may drop a block whose items would otherwise be
                # forwarded.
                if machine.effects:
                    self._carry_out(machine.effects.popleft())
                elif machine.forward_due:
                    self._forward()
                else:
                    break
        finally:
            self._performing = False
        # Sessions are admitted last, because only now the free room is known.
        if machine.admit_due:
            machine.admit_due = False
            for session in self.sessions():
                if session.publisher.is_held and self.may_read(session.publisher):
                    session.admit()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, SendResponse):
            session = self._sessions.get(effect.publisher_id)
            if session is not None:
                session.respond(effect.response)
        elif isinstance(effect, EndSession):
            session = self._sessions.pop(effect.publisher_id, None)
            if session is not None:
                session.close(effect.ended)
        elif isinstance(effect, LogLine):
            (logger.warning if effect.is_warning else logger.info)(effect.event, **effect.fields)
        else:
            if isinstance(effect, CatchUpStalled):
                logger.warning("block_catch_up_stalled", target=effect.target_block, last_block=effect.last_block)
            self._facility.publish(effect)

    def _forward(self) -> None:
        """Publishes one event with items, unless the plugins are full or other workers of the node must run first."""
        machine, limit = self.machine, self.limits.slice_items_max
        machine.forward_due = False
        if self._forwarded_items >= limit:
            return
        # Other workers have run since the last slice, so the pause is over, even without more items to forward.
        self._is_resting = False
        block = machine.blocks.find_to_forward()
        if block is None:
            return
        if self._facility.full:
            self._wait_for_room()
            return
        event = machine.blocks.forward(block, self.now_s())
        machine.forward_due = True
        if isinstance(event, ItemsReceived):
            self._forwarded_items += len(event.items)
        self._facility.publish(event)
        if self._forwarded_items >= limit:
            # The remaining items are forwarded after other workers have run. Otherwise one large block would stop the
            # whole node.
            self._is_resting = True
            self.call_later(0, self._go_on)

    def _wait_for_room(self) -> None:
        # The function is registered once; the facility keeps the function until the plugins have room.
        if not self._waits_for_room:
            self._waits_for_room = True
            self._facility.when_room(self._room)

    def _room(self) -> None:
        self._waits_for_room = False
        self.machine.forward_due = self.machine.admit_due = True
        self.perform()

    def _go_on(self) -> None:
        self.machine.go_on(self.now_s())
        self.perform()

    def _has_room(self) -> bool:
        return not self._facility.full and not self._is_resting


class PublisherSession:
    """The session of one publisher of any protocol. A subclass reads the protocol, and writes the answers. The session
    counts for an identity, by `usage`, until it is closed. peer: the name of the publisher in the log.

    The caller calls `PublishRunner.perform` after `items`, `block_end` and `stream_end`.
    """

    def __init__(self, publisher: PublisherState, runner: PublishRunner, usage: Usage, peer: str) -> None:
        self.publisher = publisher
        self.peer = peer
        self._runner = runner
        self._machine = runner.machine
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
        """Sends the last answer, if there is one, and ends the connection with the publisher."""
        raise NotImplementedError

    # Requests.

    def items(self, items: list[bytes], piece: Piece = Piece.WHOLE) -> None:
        """Handles items of a block, the first of which may be a header. Raises InvalidPublishRequest, ProtocolError."""
        # A set without items says nothing, and a piece beside other items would leave their order open.
        if not items:
            raise InvalidPublishRequest("a set of items is empty")
        if piece is not Piece.WHOLE and len(items) != 1:
            raise InvalidPublishRequest("a message with a piece of an item has that piece alone")
        mending = self._runner.mending
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
        action = self._machine.block_end(self.publisher, block_number, self._runner.now_s())
        # An end out of place does no harm, so it is only logged.
        if action in (Action.NOTE, Action.COMPLETE_AND_NOTE):
            logger.info("block_end_out_of_place", peer=self.peer, block=block_number, receiving=current)
        self._runner.mending.finish(self)

    def stream_end(self, end: EndStream) -> None:
        current = self.publisher.session.block_number
        logger.info("block_publisher_ended", peer=self.peer, code=end.code.name, block=current)
        self._machine.stream_end(self.publisher, end, self._runner.now_s())

    # Answers.

    def respond(self, response: PublishResponse) -> None:
        # The answer to a block that is taken again follows when it is stored (`mended`).
        if not (isinstance(response, DuplicateBlock) and self._runner.mending.takes(self, response.block_number)):
            self._answer(response)

    def mended(self, block_number: int) -> None:
        last_block = self._machine.last_block
        if last_block is not None:
            self.respond(DuplicateBlock(block_number, last_block))

    # The end.

    def end(self, status: PublishStatus, block_number: int | None, reason: str) -> None:
        """Ends the publisher's stream with an answer. Safe to repeat."""
        self._machine.end(self.publisher, status, block_number, reason, self._runner.now_s())
        self._runner.perform()

    def leave(self) -> None:
        """Gives up a publisher that is gone. Safe to repeat."""
        if not self._is_over:
            logger.warning("block_publisher_lost", peer=self.peer, block=self.publisher.session.block_number)
            self._machine.leave(self.publisher, self._runner.now_s())
            self._runner.perform()

    def close(self, ended: StreamEnded | None) -> None:
        """Ends the session, with the last answer if there is one. Safe to repeat: the quota is given back once."""
        if self._is_over:
            return
        self._is_over = True
        self._usage.give_back("block_publish_sessions_max")
        self._runner.mending.leave(self)
        if ended is not None:
            self._log_end(ended)
        self._closed(ended)

    def _log_end(self, ended: StreamEnded) -> None:
        status, number = ended.status.name, ended.block_number
        logger.info("block_stream_ended", peer=self.peer, status=status, block=number, reason=ended.reason)


def header_number(header: bytes, piece: Piece) -> int:
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
