"""One session of a publisher with one node: the session opens, sends the blocks that the node wants, and ends.

It runs in callbacks of the client (after messages, after sent bytes, at timers), so it continues while the program does
other work. `PublisherMachine` decides which block is sent next.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Final, TypeAlias

from block_node.blocks.errors import BlockError
from block_node.client.comparison import Comparison
from block_node.client.errors import BlockNotCompared, BlockRefused
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publisher_machine import PublisherMachine
from block_node.item_splitting import ItemBatch
from block_node.protocol import (
    PUBLISH,
    BlockItems,
    EndOfBlock,
    EndStream,
    OpenRootSession,
    OpenSession,
    PublisherEndCode,
    PublishRequest,
    PublishResponse,
    PublishStatus,
)
from ockam.protocol import ProtocolError
from stream_client.core.conversation import UNSENT_BYTES_MAX
from stream_client.errors import (
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_client.session import ClientSession

SERVICE: Final = "block_publish"
COMPARED_MAX: Final = 128
"""The maximum number of blocks that are compared before the session reads the node's messages again."""
OPEN_AGAIN_S: Final = 2.0
"""After this many seconds without an answer, the client asks again: a starting node can miss a request."""
BLAMED: Final = frozenset({PublishStatus.BAD_BLOCK_PROOF, PublishStatus.INVALID_REQUEST})
"""The statuses that mean that the block itself is invalid. Sending the block again would not help."""

SessionError: TypeAlias = ClientError | BlockError


class ClientSessionState(Enum):
    """The states of a session, in order. A session can skip states, and can return from COMPARING to OPEN."""

    CONNECTING = auto()
    OPENING = auto()
    OPEN = auto()
    """The node has opened the session. While there are blocks to send, the session sends them."""
    COMPARING = auto()
    """Blocks that the node has from another source are being compared; the session sends nothing."""
    ENDED = auto()


class ClientPublishSession:
    """One session with one node. `begin` starts it; call `pump` when there could be more to send.

    on_settled: called when blocks can have become durable. on_compared: called for a block that proved to be the same.
    on_end: called once, with the error that ended the session, or None.
    moved_s: when bytes of a block were last sent or compared, in seconds.

    Invariant: while `_chunks` is set, it has the rest of the block `machine.sending`, unless the node declined it.
    """

    def __init__(
        self,
        session: ClientSession,
        machine: PublisherMachine,
        blocks: Mapping[int, OutgoingBlock],
        answer_s_max: float,
        *,
        on_open: Callable[[], None],
        on_settled: Callable[[], None],
        on_compared: Callable[[int], None],
        on_end: Callable[[SessionError | None], None],
    ) -> None:
        self._session = session
        self.state = ClientSessionState.CONNECTING
        self.is_closing = False
        self._machine = machine
        self._blocks = blocks
        self._answer_s_max = answer_s_max
        self._on_open = on_open
        self._on_settled = on_settled
        self._on_compared = on_compared
        self._on_end = on_end
        self._opening: OpenRootSession | OpenSession = OpenRootSession(secrets.token_bytes(16))
        self._sequence = 0
        self._chunks: Iterator[ItemBatch] | None = None
        self._comparison: Comparison | None = None
        self._active_s = self.moved_s = 0.0
        self._waits_for_room = self._is_timed = self._is_pumping = False
        self._stop_timer: Callable[[], None] = lambda: None
        self._conversation = session.core.converse(SERVICE)

    def begin(self) -> None:
        self._conversation.on_change = self._changed
        if self._conversation.is_open:
            self._open()
            return
        self._session.core.connection.attempted().when_done(self._attempted)

    def awaited(self) -> ClientError:
        """Returns the error for a publisher that gives up. The error names the answer that the session waits for."""
        node, numbers = self._session.address, sorted(self._blocks)
        if self.state is ClientSessionState.CONNECTING:
            return self._session.core.connection.trouble or NodeUnreachable(f"cannot reach a node at {node}")
        if self.state is ClientSessionState.OPENING:
            return RequestTimeout(f"{node} has not opened a session")
        if self.state is ClientSessionState.COMPARING:
            return RequestTimeout(f"{node} has not told the root of its block {numbers[0]}")
        return RequestTimeout(f"{node} has not acknowledged block {numbers[0]}")

    def pump(self) -> None:
        """Sends blocks until the connection has too many unsent bytes, and later by itself when they have been sent."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self.state is ClientSessionState.OPEN and self._step():
                pass
        except (ClientError, BlockError) as error:
            self._end(error)
        finally:
            self._is_pumping = False

    def close(self) -> None:
        """Ends the session after all kept blocks are published. No more blocks can be added."""
        self.is_closing = True
        self.pump()

    def abort(self) -> None:
        """Ends the session at once, without calling `on_end`."""
        self._on_end = lambda error: None
        self._end(ClientError("the publisher has stopped"))

    # --------------------------------------------------------------------------------------------- opening

    def _attempted(self) -> None:
        if self.state is ClientSessionState.CONNECTING and not self._conversation.is_open:
            node = self._session.address
            connection = self._session.core.connection
            self._end(connection.closed or connection.trouble or NodeUnreachable(f"cannot reach a node at {node}"))

    def _open(self) -> None:
        self._stop_timer()
        self.state = ClientSessionState.OPENING
        self._machine.session_begins()
        self._opened_by_s = self._session.now_s() + self._answer_s_max
        self._ask_for_session()

    def _ask_for_session(self) -> None:
        # The session may have opened, or ended, while the timer ran.
        if self.state is not ClientSessionState.OPENING:
            return
        left_s = self._opened_by_s - self._session.now_s()
        if left_s <= 0:
            self._end(RequestTimeout(f"the node has not opened a session in {self._answer_s_max:g} s"))
            return
        try:
            self._say(self._opening)
        except ClientError as error:
            self._end(error)
            return
        # A starting node can miss the request, so it is repeated. The token makes repetitions harmless.
        self._stop_timer = self._session.shell.call_later(min(OPEN_AGAIN_S, left_s), self._ask_for_session)

    # --------------------------------------------------------------------------------------------- hearing

    def _changed(self) -> None:
        if self.state is ClientSessionState.ENDED:
            return
        if self.state is ClientSessionState.CONNECTING:
            # The conversation opens as soon as the client has a connection.
            if self._conversation.is_open:
                self._open()
            return
        if not self._conversation.is_open:
            self._end(ConnectionLost(f"the connection to {self._session.address} ended"))
        # During a comparison, messages wait in the conversation until all blocks are compared.
        elif self.state is not ClientSessionState.COMPARING:
            self._hear()

    def _hear(self) -> None:
        try:
            while self.state is not ClientSessionState.ENDED and (payload := self._conversation.take()) is not None:
                response = _decode(payload)
                # The first answer that is not an error shows that the session is open.
                if self.state is ClientSessionState.OPENING:
                    self._stop_timer()
                    self.state = ClientSessionState.OPEN
                    self._on_open()
                self._machine.take(response)
                self._on_settled()
        except RequestRefused as error:
            # An older node reports no root hashes, so the client asks for a session without them.
            if self.state is ClientSessionState.OPENING and isinstance(self._opening, OpenRootSession):
                self._stop_timer()
                self._opening = OpenSession(self._opening.token)
                self._ask_for_session()
            else:
                self._end(error)
            return
        except ClientError as error:
            self._end(error)
            return
        self._active_s = self._session.now_s()
        self.pump()

    # --------------------------------------------------------------------------------------------- sending

    def _step(self) -> bool:
        """Sends one message if there is one to send. Returns whether to call `_step` again at once."""
        machine, connection = self._machine, self._session.core.connection
        if machine.ended is not None:
            self._ended_by_node()
            return False
        # The next chunk is read when the socket has taken the last ones, so that few chunks are in memory.
        if connection.outgoing_bytes > UNSENT_BYTES_MAX:
            if not self._waits_for_room:
                self._waits_for_room = True
                connection.taken().when_done(self._has_room)
            return False
        # The node may have declined the block that is being sent.
        if machine.sending is None:
            self._chunks = None
        if self._chunks is not None:
            self._send_chunk(self._chunks)
            return True
        if machine.next_to_compare is not None:
            # The session reads the node's messages again when these blocks are compared.
            self._compare(sorted(machine.to_compare)[:COMPARED_MAX])
            return False
        # The node lacks blocks that this publisher no longer has. Another node may need fewer.
        if machine.needed is not None:
            kept = machine.kept
            ends = (kept[0], kept[-1]) if kept else (None, None)
            self._say(EndStream(self._sequence, PublisherEndCode.TOO_FAR_BEHIND, *ends))
            lacks = (
                f"{self._session.address} needs block {machine.needed}, and lacks blocks before those to be published"
            )
            self._end(ConnectionLost(lacks), told=True)
            return False
        # The machine chooses the next block that the node wants and has not declined.
        number = machine.next_block()
        if number is not None:
            machine.begin(number)
            self._chunks = iter(self._blocks[number].chunks())
            return True
        # All blocks are durable and no more will come, so the stream ends in order.
        if self.is_closing and not self._blocks:
            self._say(EndStream(self._sequence, PublisherEndCode.RESET))
            self._end(None, told=True)
            return False
        self._await_acknowledgement()
        return False

    def _send_chunk(self, chunks: Iterator[ItemBatch]) -> None:
        number = self._machine.sending
        assert number is not None
        self.moved_s = self._session.now_s()
        chunk = next(chunks, None)
        if chunk is None:
            self._chunks = None
            self._say(EndOfBlock(self._sequence, number))
            self._machine.finish(number)
        else:
            self._say(BlockItems(self._sequence, chunk.items, chunk.piece))
        self._sequence += 1

    def _has_room(self) -> None:
        self._waits_for_room = False
        self._active_s = self._session.now_s()
        self.pump()

    def _say(self, request: PublishRequest) -> None:
        self._conversation.send(PUBLISH.encode_request(request))

    def _await_acknowledgement(self) -> None:
        self._active_s = self._session.now_s()
        if self._blocks and not self._is_timed:
            self._is_timed = True
            self._stop_timer = self._session.shell.call_later(self._answer_s_max, self._look_at_time)

    def _look_at_time(self) -> None:
        self._is_timed = False
        if self.state is ClientSessionState.ENDED or not self._blocks:
            return
        # While a block is being sent or compared, no acknowledgement is due.
        idle = self.state is ClientSessionState.OPEN and self._chunks is None and not self._waits_for_room
        left_s = self._active_s + self._answer_s_max - self._session.now_s() if idle else self._answer_s_max
        if left_s <= 0:
            self._end(RequestTimeout(f"the node has not acknowledged a block for {self._answer_s_max:g} s"))
        else:
            self._is_timed = True
            self._stop_timer = self._session.shell.call_later(left_s, self._look_at_time)

    # ------------------------------------------------------------------------------------------- comparing

    def _compare(self, numbers: list[int]) -> None:
        self.state = ClientSessionState.COMPARING
        self.moved_s = self._session.now_s()
        left = set(numbers)

        def compared(number: int, error: SessionError | None) -> None:
            self.moved_s = self._session.now_s()
            left.remove(number)
            if error is None:
                self._machine.compared(number)
                self._on_compared(number)
                self._on_settled()
            elif not (isinstance(error, BlockNotCompared) and self._machine.offer_again(number)):
                # The node may have lost the bytes of the block. So the block is sent again, once, before this error.
                self._end(error)
                return
            if not left:
                self._comparison = None
                self.state = ClientSessionState.OPEN
                self._hear()

        blocks = [self._blocks[number] for number in numbers]
        stored = {number: self._machine.to_compare[number] for number in numbers}
        self._comparison = Comparison(self._session, blocks, stored, self._answer_s_max, compared)

    # ---------------------------------------------------------------------------------------------- ending

    def _ended_by_node(self) -> None:
        ended, node = self._machine.ended, self._session.address
        assert ended is not None, "the node has said so"
        if ended.status in BLAMED:
            error: ClientError = BlockRefused(ended.block_number, ended.status, f"{ended.reason} (said {node})")
        else:
            error = ConnectionLost(f"{node} ended the stream ({ended.status.name}): {ended.reason}")
        self._end(error, told=True)

    def _end(self, error: SessionError | None, *, told: bool = False) -> None:
        """Ends the session. `told`: whether the node knows of the end already. If not, the node is notified."""
        if self.state is ClientSessionState.ENDED:
            return
        if not told and self.state is not ClientSessionState.CONNECTING and self._conversation.is_open:
            self._say(EndStream(self._sequence, PublisherEndCode.RESET))
        # The state changes first: the calls below can lead back here.
        self.state = ClientSessionState.ENDED
        self._stop_timer()
        if self._comparison is not None:
            self._comparison.cancel()
        self._session.core.end_conversation(self._conversation)
        self._on_end(error)


def _decode(payload: bytes) -> PublishResponse:
    try:
        return PUBLISH.decode_response(payload)
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a {PUBLISH.name}: {error}") from error
