"""Publishes blocks for the bench: many at a time by our client, or one at a time and timed. It measures no server."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from block_node.blocks.generator import GeneratedBlock
from block_node.client import OutgoingBlock, connect
from block_node.client.publish_session import SERVICE
from block_node.protocol import PUBLISH, Acknowledgement, BlockItems, EndOfBlock, OpenSession, PublishRequest
from stream_client import StreamClient


async def publish_all(address: str, blocks: Iterable[GeneratedBlock]) -> GeneratedBlock:
    """Publishes at least one block, and waits until all blocks are acknowledged. Returns the last block."""
    block = None
    async with connect(address) as blocks_client, blocks_client.publisher() as publisher:
        for block in blocks:
            await publisher.send(OutgoingBlock.from_items(block.items))
        await publisher.flush()
    assert block is not None, "there are blocks"
    return block


class Published(NamedTuple):
    """Microseconds until the acknowledgement of a block, from the sending of its first item and of its end."""

    from_first_item_us: float
    from_end_us: float


class TimedSession:
    """A publishing session that sends one block at a time and times its acknowledgement. Call `open` first."""

    def __init__(self, connection: StreamClient) -> None:
        self._conversation = connection.converse(SERVICE)
        self._sequence = 0

    async def open(self) -> None:
        await self._say(OpenSession(b"bench"))
        await self._conversation.receive()

    async def publish(self, block: GeneratedBlock) -> Published:
        """Publishes one block. Raises RuntimeError if the node does not acknowledge it."""
        began_ns = time.perf_counter_ns()
        for chunk in OutgoingBlock.from_items(block.items).chunks():
            await self._say(BlockItems(self._sequence, chunk.items, chunk.piece))
            self._sequence += 1
        ended_ns = time.perf_counter_ns()
        await self._say(EndOfBlock(self._sequence, block.number))
        self._sequence += 1
        answer = await self._conversation.receive()
        now_ns = time.perf_counter_ns()
        if answer is None or PUBLISH.decode_response(answer) != Acknowledgement(block.number):
            raise RuntimeError(f"block {block.number} was not acknowledged")
        return Published((now_ns - began_ns) / 1e3, (now_ns - ended_ns) / 1e3)

    async def _say(self, request: PublishRequest) -> None:
        await self._conversation.send(PUBLISH.encode_request(request))
