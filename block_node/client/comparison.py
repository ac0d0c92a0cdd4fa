"""Compares a block that the program wants to publish with the block that a node already has. It publishes nothing.

Two blocks count as the same if their root hashes are equal: a root hash covers every item except the proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from block_node.blocks.block_reader import BlockReader
from block_node.blocks.errors import BlockError, Level
from block_node.blocks.hash_scheme import RootCandidate
from block_node.blocks.settings import VerifierSettings
from block_node.client.errors import AnotherBlock, BlockNotCompared
from block_node.client.outgoing import OutgoingBlock
from block_node.protocol import Piece
from block_node.protocol_reading import GET, BlockPart, GetBlock, GetStatus
from stream_client.client import StreamClient
from stream_client.errors import ClientError, RequestTimeout, UnexpectedAnswer

READING: Final = VerifierSettings(levels=Level.STRUCTURE | Level.MERKLE)
"""The checks that a block must pass before its root hash is computed: it has a header, a footer and a proof, and no
item is missing."""


class GivenBlock(msgspec.Struct, frozen=True):
    """The root hashes and the size of a block that the program gave to the publisher.

    roots: one root hash for each hash scheme that can apply; only the node knows the right scheme.
    size_bytes: the total size of all items, without their tags and lengths.
    """

    roots: tuple[RootCandidate, ...]
    size_bytes: int


class GivenReader:
    """Reads and hashes a block of the program, one chunk at each `step`, because a large block takes seconds."""

    def __init__(self, block: OutgoingBlock) -> None:
        self._reader = BlockReader(block.number, READING)
        self._steps = self._read(block)

    def step(self) -> GivenBlock | None:
        """Read one more chunk. Returns the root hashes and the size after the last chunk, else None. Raises BlockError
        if the block is not complete."""
        if next(self._steps, None) is not None:
            return None
        return GivenBlock(self._reader.finish().roots, self._reader.size_bytes)

    def _read(self, block: OutgoingBlock) -> Iterator[bool]:
        for chunk in block.chunks():
            if chunk.piece is Piece.WHOLE:
                self._reader.add(chunk.items)
            else:
                self._reader.add_part(chunk.items[0], last=chunk.piece is Piece.LAST)
            yield True


class Comparison:
    """Compares one block with the node's block of the same number, in steps. Between the steps the client sends
    and receives.

    on_done: called once, with None if the blocks are the same. Otherwise its argument is AnotherBlock,
    BlockNotCompared, BlockError, ConnectionLost, RequestTimeout or UnexpectedAnswer.
    """

    def __init__(
        self,
        client: StreamClient,
        block: OutgoingBlock,
        stored: bytes,
        answer_s_max: float,
        on_done: Callable[[ClientError | BlockError | None], None],
    ) -> None:
        """Begin the comparison.

        stored: the root hash of the node's block; empty bytes if the comparison must ask the node.
        """
        self._client = client
        self._block = block
        self._stored = stored
        self._answer_s_max = answer_s_max
        self._on_done = on_done
        self._reader = GivenReader(block)
        self._given: GivenBlock | None = None
        self._cancel = client.session.shell.call_later(0.0, self._step)

    def cancel(self) -> None:
        """Stop the comparison without calling `on_done`."""
        self._cancel()
        self._on_done = _ignored

    def _step(self) -> None:
        try:
            self._given = self._reader.step()
        except BlockError as error:
            self._finish(error)
            return
        if self._given is None:
            self._cancel = self._client.session.shell.call_later(0.0, self._step)
        elif self._stored:
            self._compare(self._given, self._stored)
        else:
            self._ask(self._given.size_bytes)

    def _ask(self, offset: int) -> None:
        """Ask the node for the root hash of its block. The answer also has bytes of the block, from byte `offset` on.
        An offset near the end of the block keeps the answer small."""

        def timed_out() -> None:
            self._cancel()
            self._finish(RequestTimeout(f"{self._client.address} has not answered for {self._answer_s_max:g} s"))

        def answered(answer: BlockPart | ClientError) -> None:
            stop_timer()
            self._answered(answer, offset)

        def cancel() -> None:
            stop_timer()
            forget()

        # The timer is set first: if the client has ended, `answered` is called at once and must find the timer.
        stop_timer = self._client.session.shell.call_later(self._answer_s_max, timed_out)
        request = GetBlock(1, self._block.number, False, offset)
        self._cancel = stop_timer
        forget = self._client.session.ask_nowait("block_get", GET, request, answered)
        if self._on_done is not _ignored:
            self._cancel = cancel

    def _answered(self, answer: BlockPart | ClientError, offset: int) -> None:
        given, node = self._given, self._client.address
        assert given is not None, "a block is read before the node is asked for its root"
        if isinstance(answer, ClientError):
            self._finish(answer)
        elif answer.status is GetStatus.INVALID_REQUEST and offset:
            # The stored block is shorter than `offset`, so the next request names its beginning.
            self._ask(0)
        elif answer.status in (GetStatus.NOT_AVAILABLE, GetStatus.NOT_FOUND):
            self._finish(BlockNotCompared(self._block.number, given.roots, node))
        elif answer.status is not GetStatus.SUCCESS:
            self._finish(UnexpectedAnswer(f"{node} cannot read block {self._block.number} ({answer.status.name})"))
        else:
            self._compare(given, answer.root)

    def _compare(self, given: GivenBlock, stored: bytes) -> None:
        if stored in [each.root for each in given.roots]:
            self._finish(None)
        else:
            self._finish(AnotherBlock(self._block.number, stored, given.roots, self._client.address))

    def _finish(self, error: ClientError | BlockError | None) -> None:
        on_done, self._on_done = self._on_done, _ignored
        on_done(error)


def _ignored(error: ClientError | BlockError | None) -> None:
    """Do nothing. Replaces `on_done` after it was called, or after the comparison was cancelled."""


async def check_same(client: StreamClient, number: int, one: OutgoingBlock, other: OutgoingBlock) -> None:
    """Compare two blocks that the program gave with the same number. Raises AnotherBlock if they differ, and BlockError
    if one is not complete."""
    first, second = await _read(client, one), await _read(client, other)
    if first.roots != second.roots:
        raise AnotherBlock(number, first.roots[0].root, second.roots, None)


async def _read(client: StreamClient, block: OutgoingBlock) -> GivenBlock:
    reader = GivenReader(block)
    while (given := reader.step()) is None:
        # A large block takes seconds to read, so the client sends and receives between the chunks.
        await client.session.shell.give_way()
    return given
