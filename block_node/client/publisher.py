"""BlockPublisher: publishes blocks to one of several nodes, and reports which blocks are durable.

The publisher keeps each block until it is acknowledged, so that it can send the block again. The size of the kept
blocks is limited; `send` waits for room. `publish_sessions` changes to another node after a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from block_node.blocks.block_reader import ReadBlock
from block_node.client.comparison import read_given
from block_node.client.errors import AnotherBlock
from block_node.client.outgoing import OutgoingBlock
from block_node.client.publish_sessions import PublishSessions, PublishSettings
from stream_client.client import StreamClient
from stream_client.core.pushes import PendingResult
from stream_client.session import ClientSession


class BlockPublisher(PublishSessions[ClientSession]):
    """Publishes blocks to one of several nodes. `BlockClient.publisher` creates it. A block is durable if the node has
    stored it from this publisher, or has a block with the same root hash.

    sessions: the number of sessions that nodes have opened so far.
    compared: the number of blocks that a node already had and that proved to be the same.
    """

    def __init__(self, clients: Sequence[StreamClient], settings: PublishSettings) -> None:
        super().__init__([client.session for client in clients], settings)

    async def send(self, block: OutgoingBlock) -> None:
        """Gives a block to the publisher. Waits while too many blocks or bytes wait for an acknowledgement.

        Raises AnotherBlock, BlockNotCompared, BlockRefused, PublishGaveUp or NodeUnreachable; BlockError if the file of
        a block cannot be read. The error can concern an earlier block.
        """
        # This wait bounds the memory: every kept block may have to be sent again.
        while self._failure is None and not self._has_room_for(block):
            await self._wait_change()
        self._check()
        # A number can be given twice: the second block must be the same.
        kept = self._blocks.get(block.number)
        if kept is not None and kept is not block:
            await _check_same(self._nodes[0], block.number, kept, block)
        elif self._keep(block):
            await self._nodes[0].shell.yield_control()

    async def flush(self) -> None:
        """Waits until every block given to `send` is durable. Raises the same errors as `send`."""
        while self._failure is None and self._blocks:
            await self._wait_change()
        self._check()

    async def _wait_change(self) -> None:
        if self._session is None and self._planned is None:
            self._begin()
        if self._changed is None:
            self._changed = PendingResult()
        await self._nodes[0].shell.wait(self._changed)


async def _check_same(session: ClientSession, number: int, one: OutgoingBlock, other: OutgoingBlock) -> None:
    """Raises AnotherBlock if two blocks of the program with the same number differ, BlockError if one is incomplete."""
    first, second = await _read(session, one), await _read(session, other)
    if first.roots != second.roots:
        raise AnotherBlock(number, first.roots[0].root, second.roots, None)


async def _read(session: ClientSession, block: OutgoingBlock) -> ReadBlock:
    reading = read_given(block)
    while isinstance(given := next(reading), int):
        # A large block takes seconds to read, so the client sends and receives between the chunks.
        await session.shell.yield_control()
    return given
