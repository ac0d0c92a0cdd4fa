"""Goal: the acceptance behaviours of publishing (facts/block_node.md §6.2), each test named after its number.

Method: publishers send routed messages to a node on a real database. Where specs/block_publish.md differs from the real
block node, the specification's answer is expected (design.md §2): duplicates and blocks that are too high leave the
stream open.
"""

from __future__ import annotations

from pathlib import Path

from block_node.protocol import Acknowledgement
from tests.block_node.publish.samples import bench, chain_of


async def test_p1_a_block_is_acknowledged_once_and_the_stream_stays_open(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        for block in chain_of(2):
            publisher.block(block)
            assert await publisher.expect(Acknowledgement) == Acknowledgement(block.number)
        await world.settle()
        assert not publisher.told
        assert world.stored() == [0, 1]
