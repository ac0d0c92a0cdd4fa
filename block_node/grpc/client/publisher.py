"""ConsensusPublisher: publishes blocks to one block node over gRPC, and reacts to each answer as a consensus node does.

`ConsensusMachine` decides. This module sends the items, reads the answers, waits, and connects again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import trio

from block_node.client.errors import BlockRefused, PublishGaveUp
from block_node.client.outgoing import OutgoingBlock
from block_node.grpc.client.channel import AskedCall, AskingConnection, GrpcChannel
from block_node.grpc.client.consensus_machine import ConsensusLimits, ConsensusMachine, Heard, SendPosition
from block_node.grpc.client.source import API, STATUS, OneAnswer
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import NO_BLOCK, MessageFormatError, WireMessage, read_message, write_message
from block_node.item_splitting import ItemJoiner
from block_node.protocol import PublishStatus
from stream_client.errors import (
    ClientError,
    InvalidArgument,
    NodeFailed,
    NodeUnreachable,
    NotSupported,
    RequestTimeout,
    UnexpectedAnswer,
)

PUBLISH: Final = API + b"BlockStreamPublishService/publishBlockStream"
GIVE_UP_S: Final = 30.0
STATUS_S_MAX: Final = 10.0
AGAIN_S: Final = 1.0
"""The pause after an attempt to connect that has failed."""
FAREWELL_S: Final = 2.0
"""The longest wait for the end of a stream that was left."""
REFUSALS: Final = (PublishStatus.BAD_BLOCK_PROOF, PublishStatus.INVALID_REQUEST)
"""The ends of a stream after which the same block would be refused again."""
UNWANTED: Final = (Heard.WANTED_EARLIER, Heard.WANTED_LATER, Heard.BEHIND_TWICE)
"""The reasons for leaving a stream because the node needs other blocks."""


class ConsensusPublisher:
    """Publishes the given blocks to a node. It is the `AnswerHandler` of its calls. streams: the number of opened
    streams.

    Invariant: `_changed` is set when anything has happened since the last `_wait`.
    """

    def __init__(
        self,
        peer: GrpcChannel,
        blocks: Sequence[OutgoingBlock],
        *,
        give_up_s: float = GIVE_UP_S,
        limits: ConsensusLimits | None = None,
    ) -> None:
        """Raises InvalidArgument for blocks that do not follow each other."""
        self._peer = peer
        self._give_up_s = give_up_s
        self._machine = ConsensusMachine(limits)
        self._blocks = {block.number: block for block in blocks}
        numbers = [block.number for block in blocks]
        if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise InvalidArgument(
                "a stream over gRPC has blocks that follow each other, each once; publish one chain without gaps"
            )
        for number in numbers:
            self._machine.produced(number)
        self._last = numbers[-1]
        self._changed = trio.Event()
        self._moved_s = trio.current_time()
        self._has_room = True
        self._ended: tuple[GrpcStatus, str] | None = None
        self._end: WireMessage | None = None
        self._problem: ClientError | None = None
        self.streams = 0

    @property
    def acknowledged(self) -> int | None:
        """The highest block that the node has acknowledged; None before the first acknowledgement."""
        return self._machine.acknowledged

    async def run(self) -> None:
        """Returns when all blocks are durable. Raises the errors of `GrpcBlockClient.publish`."""
        machine = self._machine
        self._moved_s = trio.current_time()
        while not self._is_done:
            while not machine.may_open(trio.current_time()):
                await self._wait(machine.opens_s)
            try:
                connection = await self._peer.connection()
                next_expected = await self._ask_next(connection)
                await self._stream(connection, next_expected)
            except (NodeUnreachable, NodeFailed, RequestTimeout) as error:
                self._problem = error
                machine.lost(trio.current_time())
                await self._wait(trio.current_time() + AGAIN_S)

    # Called by the connection.

    def take(self, message: bytes) -> None:
        now_s, before = trio.current_time(), self.acknowledged
        try:
            answer = read_message("PublishStreamResponse", message)
        except MessageFormatError as error:
            self._problem = UnexpectedAnswer(str(error))
            self._machine.lost(now_s)
        else:
            self._end = answer.get("end_stream", self._end)
            self._machine.take(answer, now_s)
        if self.acknowledged != before:
            self._moved_s = now_s
        self._changed.set()

    def room(self) -> None:
        self._has_room = True
        self._changed.set()

    def done(self, status: GrpcStatus, text: str) -> None:
        self._ended = (status, text)
        self._machine.lost(trio.current_time())
        self._changed.set()

    # One stream.

    @property
    def _is_done(self) -> bool:
        return self.acknowledged is not None and self.acknowledged >= self._last

    async def _ask_next(self, connection: AskingConnection) -> int | None:
        """Returns the next block that the node expects, at most the last block to publish; NO_BLOCK: any block. None:
        the node has no status service."""
        found: list[tuple[bytes | None, GrpcStatus, str]] = []
        answered = trio.Event()

        def done(message: bytes | None, status: GrpcStatus, text: str) -> None:
            found.append((message, status, text))
            answered.set()

        self._peer.ask(connection, STATUS, OneAnswer(done), b"", timeout_s=STATUS_S_MAX)
        with trio.move_on_after(STATUS_S_MAX):
            await answered.wait()
        if not found:
            raise RequestTimeout(f"{self._peer.address} says nothing over gRPC; is this its port for gRPC?")
        [(message, status, text)] = found
        if message is None:
            error = self._peer.error_of(status, text)
            if isinstance(error, NotSupported):
                return None
            raise error
        try:
            expected: int = read_message("ServerStatusResponse", message).get("next_expected_block", 0)
        except MessageFormatError as error:
            raise UnexpectedAnswer(f"{self._peer.address}: {error}") from error
        # A node that has all blocks says so when the last one is offered.
        return expected if expected == NO_BLOCK else min(expected, self._last)

    async def _stream(self, connection: AskingConnection, next_expected: int | None) -> None:
        """Publishes over one call, until all blocks are durable or the stream is left. Raises BlockRefused, and the
        error of a call that the node refuses."""
        machine, began_s = self._machine, self._moved_s
        self._ended = self._end = None
        self._has_room = True
        machine.opened(trio.current_time(), next_expected)
        call = self._peer.ask(connection, PUBLISH, self)
        self.streams += 1
        try:
            while machine.is_open and not self._is_done:
                position = machine.position
                if position is None:
                    await self._wait()
                else:
                    await self._send_block(call, position)
            machine.close(trio.current_time())
            if machine.left in UNWANTED:
                # The bytes that were sent are no progress: else a publisher that always connects again would never
                # give up.
                self._moved_s = began_s
            await self._leave(call)
        finally:
            call.cancel()

    async def _send_block(self, call: AskedCall, position: SendPosition) -> None:
        machine, block = self._machine, self._blocks[position.block_number]
        for request in requests_of(block):
            # An answer has moved the stream: the rest of this block is not sent.
            if machine.position != position or not await self._send(call, request):
                return
        end = {"end_of_block": {"block_number": block.number}}
        if machine.position == position and await self._send(call, write_message("PublishStreamRequest", end)):
            machine.finished(position, trio.current_time())

    async def _send(self, call: AskedCall, request: bytes) -> bool:
        """Sends a request, and waits for its window. Returns False if that took too long or the stream is over."""
        machine = self._machine
        until_s = trio.current_time() + machine.send_s_max(len(request))
        self._has_room = call.send(request)
        # The answers to earlier requests are read in between.
        await trio.lowlevel.checkpoint()
        while not self._has_room and machine.is_open:
            if trio.current_time() >= until_s:
                machine.not_sent(trio.current_time())
                return False
            await self._wait(until_s)
            # There is room again: the node has taken bytes. Bytes that only fill a new window are no progress.
            if self._has_room and machine.is_open:
                self._moved_s = trio.current_time()
        return machine.is_open

    async def _leave(self, call: AskedCall) -> None:
        """Sends the last request of a stream that was left, and waits for the end of the call. Raises BlockRefused, or
        the error of a refused call."""
        machine = self._machine
        farewell = machine.take_farewell()
        if self._ended is None:
            if farewell is not None:
                call.send(write_message("PublishStreamRequest", farewell))
            call.end()
            with trio.move_on_after(FAREWELL_S):
                while self._ended is None:
                    await self._changed.wait()
                    self._changed = trio.Event()
        status, text = self._ended or (GrpcStatus.OK, "")
        if self._is_done:
            return
        end = self._end
        if end is None:
            if status is not GrpcStatus.OK:
                raise self._peer.error_of(status, text)
            left = "the call has ended" if machine.left is None else machine.left.text
            self._problem = NodeFailed(f"{self._peer.address}: {left}")
            return
        code = end.get("status", 0)
        known = code in PublishStatus.__members__.values()
        if known and PublishStatus(code) in REFUSALS:
            raise BlockRefused(end.get("proximate_block_number", 0), PublishStatus(code), text or "no reason is given")
        name = PublishStatus(code).name if known else f"code {code}"
        self._problem = NodeFailed(f"{self._peer.address} has ended the stream ({name}): {text or 'without a reason'}")

    async def _wait(self, until_s: float = math.inf) -> None:
        """Waits until something happens, or until `until_s`. Raises after `give_up_s` seconds without progress."""
        with trio.move_on_at(min(until_s, self._moved_s + self._give_up_s)):
            await self._changed.wait()
        self._changed = trio.Event()
        if trio.current_time() >= self._moved_s + self._give_up_s and not self._is_done:
            if isinstance(self._problem, NodeUnreachable):
                raise self._problem
            reason = self._problem or f"{self._peer.address} says nothing"
            raise PublishGaveUp(f"no block was acknowledged for {self._give_up_s:g} s: {reason}")


def requests_of(block: OutgoingBlock) -> Iterator[bytes]:
    """Yields the requests with the items of a block. Pieces are joined: a set has whole items. Raises BlockError."""
    joiner = ItemJoiner()
    for items, piece, _size_bytes in block.chunks():
        joiner.add(items, piece)
        if joiner.items:
            yield write_message("PublishStreamRequest", {"block_items": {"block_items": joiner.take()}})
