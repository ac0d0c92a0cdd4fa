"""Goal: a block whose file cannot be read fails where it was given, and the node forgets what came of it.

Method: files that are damaged after their header, and a whole server.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from block_node.blocks.errors import BlockFileError
from block_node.blocks.files import write_block
from block_node.client import BlockClient, OutgoingBlock, connect
from tests.block_node.client.chains import chain
from tests.support.served import served


async def publish(client: BlockClient, block: OutgoingBlock) -> None:
    async with client.publisher() as publisher:
        await publisher.send(block)


def test_a_compressed_block_with_a_plain_name_is_told(tmp_path: Path) -> None:
    path = tmp_path / "0.blk"
    path.write_bytes(gzip.compress(b"a block"))
    with pytest.raises(BlockFileError, match="gzip has compressed it, so its name must end in"):
        OutgoingBlock.from_file(path)


async def test_a_file_that_is_cut_short_is_an_error_of_who_gave_it(tmp_path: Path) -> None:
    """It is found out while the block is sent; afterwards the whole file is taken."""
    block = chain(20)[0]
    whole, cut = tmp_path / "0.blk", tmp_path / "cut.blk"
    write_block(whole, block.items)
    cut.write_bytes(whole.read_bytes()[:-10])
    async with served(tmp_path / "data", log_level="error") as running, connect(running.address) as client:
        given = OutgoingBlock.from_file(str(cut))
        with pytest.raises(BlockFileError, match="ends within an item"):
            await publish(client, given)
        await publish(client, OutgoingBlock.from_file(str(whole)))
        assert (await client.get())[1] == block.root
