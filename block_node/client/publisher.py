"""Publishes blocks to one of several nodes, goes on at another one when that fails, and tells when they are durable.

What is sent next is `publisher_machine`'s decision. A block is kept until it is acknowledged, so that it can be sent
again; how much is kept is bounded, and `send` waits for room. A block is durable when the node has stored what this
publisher sent, or has a block with the same root (`comparison`).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import msgspec

from block_node.blocks.errors import BlockError
from block_node.client.comparison import check_same, compare
from block_node.client.connection import BlockConnection, Conversation, open_connection
from block_node.client.errors import BlockRefused, PublishGaveUp
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publisher_machine import PublisherMachine
from block_node.protocol import (
    PUBLISH,
    BlockItems,
    EndOfBlock,
    EndStream,
    OpenRootSession,
    OpenSession,
    PublisherEndCode,
    PublishResponse,
    PublishStatus,
)
from ockam.address import Route
from ockam.protocol import ProtocolError
from stream_client.errors import (
    ClientError,
    ConnectionLost,
    NodeUnreachable,
    RequestRefused,
    RequestTimeout,
    UnexpectedAnswer,
)
from stream_client.shell.backoff import Backoff, Reconnect

SERVICE: Final = "block_publish"
OPEN_AGAIN_S: Final = 2.0
BLAMED: Final = frozenset({PublishStatus.BAD_BLOCK_PROOF, PublishStatus.INVALID_REQUEST})
"""What a node says of a block that is not what it should be; to send it again and again would not help."""


class PublishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """kept_blocks_max, kept_bytes_max: without an acknowledgement, at most. answer_s_max: for a node to say anything
    while it owes an acknowledgement. give_up_s: without one, and without a session; None is never. refusals_max: of one
    block, before that is an error: with 1 a refused block is not sent again. reconnect: delays between sessions.
    """

    kept_blocks_max: int = 150
    kept_bytes_max: int = 256 * 1024 * 1024
    answer_s_max: float = 30.0
    give_up_s: float | None = None
    refusals_max: int = 1
    reconnect: Reconnect = Reconnect()


class BlockPublisher:
    """See the module; made by `BlockClient.publisher`.

    acknowledged: the highest block of those given to `send` that is known to be durable, with all given below it.
    compared: blocks that the node had without this session, and that were compared by their roots.
    Invariant: `_blocks` has exactly the blocks that the machine keeps.
    """

    def __init__(self, nodes: Sequence[str], via: Route, settings: PublishSettings) -> None:
        self._nodes = list(nodes)
        self._via = via
        self._settings = settings
        self._machine = PublisherMachine()
        self._blocks: dict[int, OutgoingBlock] = {}
        self._kept_bytes = 0
        self._changed = anyio.Event()
        self._more = anyio.Event()
        self._failure: ClientError | BlockError | None = None
        self._refusals: dict[int, int] = {}
        self._progress_s = anyio.current_time()
        self._closing = False
        self._wake: Callable[[], None] = lambda: None
        self.sessions = 0
        self.compared = 0

    @property
    def acknowledged(self) -> int | None:
        return self._machine.acknowledged

    @property
    def kept(self) -> int:
        """Blocks without an acknowledgement."""
        return len(self._blocks)

    async def send(self, block: OutgoingBlock) -> None:
        """Have it published; waits while too much is kept.

        Raises AnotherBlock, BlockNotCompared, BlockRefused, PublishGaveUp, NodeUnreachable, and BlockError where a
        block's file cannot be read.
        """
        settings = self._settings
        while self._failure is None and (
            len(self._blocks) >= settings.kept_blocks_max
            or (self._blocks and self._kept_bytes + block.size_bytes > settings.kept_bytes_max)
        ):
            await self._wait_change()
        self._check()
        if not self._blocks:
            self._progress_s = anyio.current_time()
        kept = self._blocks.get(block.number)
        if kept is not None and kept is not block:
            await check_same(block.number, kept, block)
        elif self._machine.add(block.number):
            self._blocks[block.number] = block
            self._kept_bytes += block.size_bytes
            self._more.set()
            self._wake()

    async def flush(self) -> None:
        """Until all that was given to `send` is durable. Raises as `send` does."""
        while self._failure is None and self._blocks:
            await self._wait_change()
        self._check()

    async def run(self) -> None:
        """Publish, session after session, until cancelled or given up."""
        backoff = Backoff(self._settings.reconnect, random.random)
        while self._failure is None:
            for node in list(self._nodes):
                await self._wait_blocks()
                before = self._machine.acknowledged
                try:
                    await self._publish_at(node)
                except BlockRefused as error:
                    self._fail(error)
                    return
                except (ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer) as error:
                    self._look_for_patience(error)
                except (ClientError, BlockError) as error:
                    # A block whose source cannot be read is an error of who gave it to `send`.
                    self._fail(error)
                    return
                if self._closing or self._failure is not None:
                    return
                if self._machine.acknowledged != before:
                    backoff.succeeded()
                    break
            await anyio.sleep(backoff.next_delay_s())

    async def close(self) -> None:
        """Nothing more will be sent; the node is told at the end of what is under way."""
        self._closing = True
        self._more.set()
        self._wake()

    async def _publish_at(self, node: str) -> None:
        """One session, until one side ends it. A node that fails stays in the list, behind the others."""
        try:
            async with open_connection(node, self._via) as connection:
                conversation = connection.converse(SERVICE)
                await self._open(conversation)
                self.sessions += 1
                await self._serve(connection, conversation)
        finally:
            if len(self._nodes) > 1:
                self._nodes.remove(node)
                self._nodes.append(node)

    async def _open(self, conversation: Conversation) -> None:
        """Ask for a session, more than once: a node that starts may not have heard. Raises RequestTimeout."""
        token = secrets.token_bytes(16)
        opening: OpenSession | OpenRootSession = OpenRootSession(token)
        self._machine.session_begins()
        deadline_s = anyio.current_time() + self._settings.answer_s_max
        while anyio.current_time() < deadline_s:
            await conversation.send(PUBLISH.encode_request(opening))
            try:
                opened = await self._next_answer(conversation, min(OPEN_AGAIN_S, self._settings.answer_s_max))
            except RequestRefused:
                if isinstance(opening, OpenSession):
                    raise
                # The node is of a version that names no roots; whatever it has is looked up.
                opening = OpenSession(token)
                continue
            if opened is not None:
                self._take(opened)
                return
        raise RequestTimeout(f"the node has not opened a session in {self._settings.answer_s_max:g} s")

    async def _serve(self, connection: BlockConnection, conversation: Conversation) -> None:
        sequence = 0
        while True:
            while (response := self._decode(conversation.take())) is not None:
                self._take(response)
            if self._machine.ended is not None:
                self._blame(connection.address)
                return
            if self._machine.to_compare:
                # One at a time, so that what the node says meanwhile is heard in between.
                await self._compare_one(connection)
                continue
            number = self._machine.next_block()
            if self._machine.too_far_behind:
                code, kept = PublisherEndCode.TOO_FAR_BEHIND, self._machine.kept
                ends = (kept[0], kept[-1]) if kept else (None, None)
                await conversation.send(PUBLISH.encode_request(EndStream(sequence, code, *ends)))
                self._look_for_patience(None)
                return
            if number is None and self._closing and not self._blocks:
                await conversation.send(PUBLISH.encode_request(EndStream(sequence, PublisherEndCode.RESET)))
                return
            if number is not None:
                sequence = await self._send_block(conversation, self._blocks[number], sequence)
            else:
                await self._wait_answer(conversation)

    async def _compare_one(self, connection: BlockConnection) -> None:
        """Compare the lowest block that the node has without this session. Raises as `compare` does."""
        machine = self._machine
        number = min(machine.to_compare)
        await compare(connection, self._blocks[number], machine.to_compare[number], self._settings.answer_s_max)
        machine.compared(number)
        self.compared += 1
        self._forget_settled()

    async def _send_block(self, conversation: Conversation, block: OutgoingBlock, sequence: int) -> int:
        """Send it, until the node says that it does not want it; the number of the next message."""
        machine = self._machine
        machine.begin(block.number)
        for chunk in block.chunks():
            await conversation.send(PUBLISH.encode_request(BlockItems(sequence, chunk.items, chunk.piece)))
            sequence += 1
            while (response := self._decode(conversation.take())) is not None:
                self._take(response)
            if machine.sending != block.number:
                return sequence
        await conversation.send(PUBLISH.encode_request(EndOfBlock(sequence, block.number)))
        machine.finish(block.number)
        return sequence + 1

    async def _wait_answer(self, conversation: Conversation) -> None:
        """Nothing is to be sent: wait for the node's word, or for another block. Raises RequestTimeout."""
        self._wake = conversation.wake
        owed = bool(self._blocks)
        if not await conversation.wait(self._settings.answer_s_max if owed else None):
            raise RequestTimeout(f"the node has not acknowledged a block for {self._settings.answer_s_max:g} s")

    async def _next_answer(self, conversation: Conversation, timeout_s: float | None) -> PublishResponse | None:
        return self._decode(await conversation.receive(timeout_s))

    def _decode(self, payload: bytes | None) -> PublishResponse | None:
        if payload is None:
            return None
        try:
            return PUBLISH.decode_response(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {PUBLISH.name}: {error}") from error

    def _take(self, response: PublishResponse) -> None:
        self._machine.take(response)
        self._forget_settled()

    def _forget_settled(self) -> None:
        """Blocks that are known to be durable need not be kept."""
        settled = self._machine.take_settled()
        for number in settled:
            self._kept_bytes -= self._blocks.pop(number).size_bytes
            self._refusals.pop(number, None)
        if settled:
            self._progress_s = anyio.current_time()
            self._changed.set()

    def _blame(self, node: str) -> None:
        """The node has ended the stream. Raises BlockRefused where it blames the same block too often."""
        ended = self._machine.ended
        assert ended is not None, "the node has said so"
        if ended.status in BLAMED:
            number = ended.block_number if ended.block_number is not None else -1
            self._refusals[number] = self._refusals.get(number, 0) + 1
            if self._refusals[number] >= self._settings.refusals_max:
                raise BlockRefused(ended.block_number, ended.status, f"{ended.reason} (said {node})")
        self._look_for_patience(ConnectionLost(f"{node} ended the stream ({ended.status.name}): {ended.reason}"))

    def _look_for_patience(self, error: ClientError | None) -> None:
        """Give up where nothing went forward for too long."""
        give_up_s = self._settings.give_up_s
        if give_up_s is None or anyio.current_time() - self._progress_s < give_up_s:
            return
        if isinstance(error, NodeUnreachable):
            self._fail(error)
            return
        reason = "the node lacks blocks before those that are to be published" if error is None else str(error)
        self._fail(PublishGaveUp(f"no block was acknowledged for {give_up_s:g} s: {reason}"))

    def _fail(self, error: ClientError | BlockError) -> None:
        self._failure = error
        self._changed.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_blocks(self) -> None:
        """Until there is something to publish."""
        while not self._blocks and not self._closing:
            self._more = anyio.Event()
            await self._more.wait()

    async def _wait_change(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()
