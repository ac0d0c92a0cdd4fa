"""Goal: what holds for routed messages holds over real sockets, in both framings, on a whole server.

Method: publishers made of a socket and a wire; real blocks of the Hiero network where they are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio

from block_node.blocks.generator import BlockShape
from block_node.blocks.items import Item, split_block
from block_node.protocol import (
    PUBLISH,
    Acknowledgement,
    BlockItems,
    EndOfBlock,
    EndStream,
    OpenSession,
    Piece,
    PublisherEndCode,
    PublishRequest,
    PublishResponse,
    ResendBlock,
    SessionOpened,
    SkipBlock,
)
from block_node.publish.publish_machine import PublishStatistics
from ockam.actors.address import Route, local
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from tests.block_node.publish.samples import chain_of
from tests.support.blocks import real_blocks
from tests.support.peer import Peer
from tests.support.served import PATIENCE_S, Served, served, wait_until

SET_BYTES = 40_000
"""What a set of items has at most: it fits into a frame of either framing."""


class TcpPublisher:
    """A publisher at the other end of a connection."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._session: Route = ()
        self._sequence = 0

    @classmethod
    async def open(cls, running: Served, wire: Wire = HEAD) -> tuple[TcpPublisher, SessionOpened]:
        stream = await running.connect()
        await stream.send_all(wire.hello)
        publisher = cls(Peer(stream, wire))
        with trio.fail_after(PATIENCE_S):
            while not publisher._session:
                # A node that has just started may not know yet what it has.
                with trio.move_on_after(1):
                    await publisher._peer.send((local("block_publish"),), PUBLISH.encode_request(OpenSession(b"tcp")))
                    answer = await publisher._peer.receive()
                    publisher._session = answer.return_route[-1:]
        opened = PUBLISH.decode_response(answer.payload)
        assert isinstance(opened, SessionOpened)
        return publisher, opened

    async def items(self, items: Sequence[Item]) -> None:
        for piece, some in sets(items):
            await self._send(BlockItems(self._next(), some, piece))

    async def block(self, number: int, items: Sequence[Item]) -> None:
        await self.items(items)
        await self._send(EndOfBlock(self._next(), number))

    async def hear(self) -> PublishResponse:
        return PUBLISH.decode_response((await self._peer.receive()).payload)

    async def wait_for(self, wanted: PublishResponse) -> None:
        with trio.fail_after(PATIENCE_S):
            while await self.hear() != wanted:
                pass

    async def end(self) -> None:
        await self._send(EndStream(self._next(), PublisherEndCode.RESET, None, None))

    def vanish(self) -> None:
        """The connection breaks."""
        self._peer.stream.socket.close()

    async def _send(self, request: PublishRequest) -> None:
        await self._peer.send(self._session, PUBLISH.encode_request(request))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1


def sets(items: Sequence[Item]) -> Iterator[tuple[Piece, list[bytes]]]:
    """The items as messages: many small ones together, a large one in pieces."""
    some: list[bytes] = []
    size_bytes = 0
    for item in items:
        if some and size_bytes + len(item) > SET_BYTES:
            yield Piece.WHOLE, some
            some, size_bytes = [], 0
        if len(item) <= SET_BYTES:
            some.append(item)
            size_bytes += len(item) + 4
            continue
        for at in range(0, len(item), SET_BYTES):
            last = at + SET_BYTES >= len(item)
            yield Piece.FIRST if at == 0 else Piece.LAST if last else Piece.MIDDLE, [item[at : at + SET_BYTES]]
    if some:
        yield Piece.WHOLE, some


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: str(wire.name))
async def test_two_publishers_of_whom_one_dies_in_a_block(tmp_path: Path, wire: Wire) -> None:
    blocks = chain_of(4)
    async with served(tmp_path) as running:
        dying, opened = await TcpPublisher.open(running, wire)
        assert (opened.last_block, opened.next_block) == (None, 0)

        def figures() -> PublishStatistics:
            blocks = running.server.statistics().services.blocks
            assert blocks is not None
            assert blocks.node.publish is not None
            return blocks.node.publish

        staying, _ = await TcpPublisher.open(running, wire)
        await dying.block(0, blocks[0].items)
        await dying.items(blocks[1].items[:5])
        await staying.wait_for(Acknowledgement(0))
        await staying.block(1, blocks[1].items)
        await staying.wait_for(SkipBlock(1))
        dying.vanish()
        await staying.wait_for(ResendBlock(1))
        for block in blocks[1:3]:
            await staying.block(block.number, block.items)
        await staying.wait_for(Acknowledgement(2))
        # An orderly end is no loss.
        await staying.end()
        await wait_until(lambda: figures().publishers == 0)
        assert figures().publishers_lost == 1
    async with served(tmp_path) as running:
        again, opened = await TcpPublisher.open(running, wire)
        assert (opened.last_block, opened.next_block) == (2, 3)
        await again.block(3, blocks[3].items)
        await again.wait_for(Acknowledgement(3))


@pytest.mark.parametrize("name", ["SCHNORR", "SOLO_4N"])
async def test_real_blocks_are_published(tmp_path: Path, shared_dir: Path, name: str) -> None:
    async with served(tmp_path) as running:
        publisher, _ = await TcpPublisher.open(running)
        blocks = real_blocks(shared_dir, name)
        for number, block in enumerate(blocks):
            await publisher.block(number, list(split_block(block)))
        await publisher.wait_for(Acknowledgement(len(blocks) - 1))


async def test_an_item_of_many_frames(tmp_path: Path) -> None:
    """A record file of 20 MB, in pieces of 40 kB."""
    shape = BlockShape(item_count=6, record_bytes=20_000_000)
    (block,) = chain_of(1, shape)
    async with served(tmp_path) as running:
        publisher, _ = await TcpPublisher.open(running)
        await publisher.block(0, block.items)
        await publisher.wait_for(Acknowledgement(0))
