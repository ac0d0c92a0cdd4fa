"""The session of a publisher: hands the requests of one publisher to the publish machine, and to the mending of blocks,
and sends the answers.

If the stored bytes of a block are damaged or gone, and a publisher offers the block as a duplicate, `Mending` takes the
block again. The answer DuplicateBlock is sent only when the block is stored again.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from block_node.blocks.errors import BlockFormatError
from block_node.blocks.items import ItemKind, item_kind, read_header
from block_node.events import (
    BackfilledBlockNotification,
    BlockOrigin,
    NodeFailure,
    Notification,
    PersistedNotification,
    VerificationNotification,
)
from block_node.facility import Facility
from block_node.item_splitting import ItemJoiner
from block_node.persist.schema import NUMBER_MAX
from block_node.persist.store import ChainStore
from block_node.protocol import DuplicateBlock, EndStream, Piece, PublishResponse, PublishStatus, StreamEnded
from block_node.publish.block_machine import PublishLimits
from block_node.publish.publish_machine import PublishMachine, status_of
from block_node.publish.session_machine import Action, InvalidPublishRequest, PublisherState
from ockam.protocol import ProtocolError
from ockam.quotas.usage import Usage

BYTES_MAX = 128 * 1024 * 1024
"""The largest block with which a publisher can mend. The largest message of the reference block node is smaller."""

FindRoots = Callable[[int, Callable[[tuple[bytes, ...] | None], None]], None]
"""Calls its second argument with the root hashes that a stored block may have. Empty: any root hash is allowed. None:
they cannot be read now."""


class Mending:
    """The damaged block that a publisher sends again, as a whole in memory, to be verified and stored again.

    Invariant: `_session` is set exactly while a block is being received, verified or stored.
    """

    def __init__(self, facility: Facility, store: ChainStore, limits: PublishLimits, find_roots: FindRoots) -> None:
        self._facility = facility
        self._store = store
        self._limits = limits
        self._find_roots = find_roots
        self._session: PublisherSession | None = None
        self._number = -1
        self._joiner = ItemJoiner()
        self._size_bytes = 0
        self._began_s = 0.0

    def wants(self, number: int) -> bool:
        return self._session is None and number in self._store.damaged

    def takes(self, session: PublisherSession, number: int) -> bool:
        return session is self._session and number == self._number

    def begin(self, session: PublisherSession, number: int, items: list[bytes]) -> None:
        self._session, self._number = session, number
        self._size_bytes, self._began_s = 0, trio.current_time()
        self.add(session, items, Piece.WHOLE)

    def add(self, session: PublisherSession, items: list[bytes], piece: Piece) -> None:
        if session is not self._session:
            return
        self._size_bytes += sum(map(len, items))
        if self._size_bytes > BYTES_MAX:
            self._end().mended(self._number)
        else:
            self._joiner.add(items, piece)

    def finish(self, session: PublisherSession) -> None:
        # A second end of the same block is ignored.
        if session is not self._session or not self._joiner.items:
            return
        number, items, size_bytes = self._number, self._joiner.take(), self._size_bytes

        def verify(roots: tuple[bytes, ...] | None) -> None:
            if self._session is not session or self._number != number:
                return
            if roots is None:
                # Without a root hash to check, any block could take the place of the damaged one.
                reason = "the root hash that the block must have cannot be read now"
                self._end().end(PublishStatus.PERSISTENCE_FAILED, number, reason)
            else:
                block = BackfilledBlockNotification(number, items, size_bytes, BlockOrigin.PUBLISHER, roots)
                self._facility.publish(block)

        self._find_roots(number, verify)

    def leave(self, session: PublisherSession) -> None:
        """Forgets the block of a session that ends or sends another block; a block being stored is still stored."""
        if session is self._session:
            self._end()

    def tick(self) -> None:
        """Ends the stream of a publisher that takes too long, as for a new block (`PublishLimits.block_s_max`)."""
        limits = self._limits
        allowed_s = limits.block_s_max + self._size_bytes / limits.earned_bytes_per_s
        if self._session is not None and trio.current_time() - self._began_s > allowed_s:
            reason = f"the block was not stored again after {allowed_s:g} s"
            self._end().end(PublishStatus.TIMEOUT, self._number, reason)

    def handle_notification(self, notification: Notification) -> None:
        if self._session is None:
            return
        if isinstance(notification, NodeFailure):
            self._end()
        elif isinstance(notification, VerificationNotification):
            is_own = notification.block_number == self._number and notification.attempt == 0
            if is_own and not notification.success and notification.source is BlockOrigin.PUBLISHER:
                self._end().end(status_of(notification.failure), self._number, notification.reason)
        elif isinstance(notification, PersistedNotification) and notification.block_number == self._number:
            if notification.succeeded:
                self._end().mended(self._number)
            elif notification.source is BlockOrigin.PUBLISHER:
                self._end().end(PublishStatus.PERSISTENCE_FAILED, self._number, notification.reason)

    def _end(self) -> PublisherSession:
        session, self._session = self._session, None
        self._joiner.take()
        assert session is not None, "a block is being taken"
        return session


HEADER_TAG = bytes((ItemKind.HEADER << 3 | 2,))
"""The first byte of a serialized block header. No other block item begins with this byte."""

logger = structlog.get_logger(__name__)


class PublisherSession:
    """The session of one publisher of any protocol. A subclass reads the protocol, and writes the answers. usage:
    counts the session for an identity until the session is closed. peer: the publisher's name in the log.

    The caller calls `PublishService.perform` after `items`, `block_end` and `stream_end`.
    """

    def __init__(
        self,
        publisher: PublisherState,
        machine: PublishMachine,
        mending: Mending,
        perform: Callable[[], None],
        usage: Usage,
        peer: str,
    ) -> None:
        self.publisher = publisher
        self.peer = peer
        self._machine = machine
        self._mending = mending
        self._perform = perform
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
        mending = self._mending
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
        self._mending.finish(self)

    def stream_end(self, end: EndStream) -> None:
        current = self.publisher.session.block_number
        logger.info("block_publisher_ended", peer=self.peer, code=end.code.name, block=current)
        self._machine.stream_end(self.publisher, end, trio.current_time())

    # Answers.

    def respond(self, response: PublishResponse) -> None:
        # The answer to a block that is taken again follows when it is stored (`mended`).
        if not (isinstance(response, DuplicateBlock) and self._mending.takes(self, response.block_number)):
            self._answer(response)

    def mended(self, block_number: int) -> None:
        last_block = self._machine.last_block
        if last_block is not None:
            self.respond(DuplicateBlock(block_number, last_block))

    # The end.

    def end(self, status: PublishStatus, block_number: int | None, reason: str) -> None:
        """Ends the publisher's stream with an answer. Safe to repeat."""
        self._machine.end(self.publisher, status, block_number, reason, trio.current_time())
        self._perform()

    def leave(self) -> None:
        """Gives up a publisher that is gone. Safe to repeat."""
        if not self._is_over:
            logger.warning("block_publisher_lost", peer=self.peer, block=self.publisher.session.block_number)
            self._machine.leave(self.publisher, trio.current_time())
            self._perform()

    def close(self, ended: StreamEnded | None) -> None:
        """Ends the session, with the last answer if there is one. Safe to repeat: the quota is given back once."""
        if self._is_over:
            return
        self._is_over = True
        self._usage.give_back("block_publish_sessions_max")
        self._mending.leave(self)
        if ended is not None:
            self._log_end(ended)
        self._closed(ended)

    def _log_end(self, ended: StreamEnded) -> None:
        status, number = ended.status.name, ended.block_number
        logger.info("block_stream_ended", peer=self.peer, status=status, block=number, reason=ended.reason)


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
