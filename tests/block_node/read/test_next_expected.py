"""Goal: the status tells the block that is expected next as the real node does: the lowest that nobody has or sends.

Method: a whole server, and a publisher that sends headers, and later what is behind them.
"""

from __future__ import annotations

from pathlib import Path

from block_node.client import connect
from block_node.node import BlockNodeStatistics
from block_node.protocol import PUBLISH, BlockItems, EndOfBlock, OpenSession
from stream_client import connect as connect_streams
from tests.block_node.client.chains import chain
from tests.support.served import Served, served, wait_until


async def test_the_next_expected_block_moves_with_each_header(tmp_path: Path) -> None:
    """Not with the end of what is stored."""
    async with served(tmp_path, log_level="error") as running, connect(running.address) as client:
        expected = [(await client.status()).next_expected]
        async with connect_streams(running.address) as connection:
            conversation = connection.converse("block_publish")
            await conversation.send(PUBLISH.encode_request(OpenSession(b"")))
            await conversation.receive()
            for number in range(2):
                items = list(chain(20)[number].items)
                await conversation.send(PUBLISH.encode_request(BlockItems(3 * number, items[:1])))
                await wait_until(lambda: _next(running) == len(expected))
                expected.append((await client.status()).next_expected)
                await conversation.send(PUBLISH.encode_request(BlockItems(3 * number + 1, items[1:])))
                await conversation.send(PUBLISH.encode_request(EndOfBlock(3 * number + 2, number)))
            await wait_until(lambda: _blocks(running).store.last_block == 1)
        expected.append((await client.status()).next_expected)
    assert expected == [0, 1, 2, 2]


def _blocks(running: Served) -> BlockNodeStatistics:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.node


def _next(running: Served) -> int:
    publish = _blocks(running).publish
    assert publish is not None
    return publish.next_block
