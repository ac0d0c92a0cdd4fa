"""Claim: between whole servers nothing is stored that is not tied to the chain, and each source does what it can.

Method: servers on real sockets and files in one process; a liar is a server with another, self-consistent chain.
"""

from __future__ import annotations

from pathlib import Path

import trio

from block_node.client import BlockClient
from tests.block_node.backfill.served_blocks import QUICK, backfill_status, chain, ranges, source, wait_ranges
from tests.support.served import PATIENCE_S, served


async def test_a_forged_history_is_not_stored(tmp_path: Path) -> None:
    """The only source has another chain, whose blocks pass by themselves; then an honest one is there too."""
    blocks = chain(40)
    async with source(tmp_path / "liar", chain(40, seed=1)) as liar, source(tmp_path / "one", blocks) as one:
        async with source(tmp_path / "two", blocks[20:]):
            pass
        settings = QUICK | {"block_first": 20, "backfill_block_node_sources": (liar.address,)}
        async with served(tmp_path / "two", **settings) as two:
            with trio.fail_after(PATIENCE_S):
                while (status := await backfill_status(two.address)).given_up < 1:
                    await trio.sleep(0.05)
            assert status.blocks_stored == 0
            assert "root" in status.sources[0].last_error
            assert await ranges(two.address) == [(20, 39)]
        settings["backfill_block_node_sources"] = (liar.address, f"{one.address}@1")
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 39))
            for block in blocks[:20]:
                assert (await BlockClient([two.address]).get(block.number))[1] == block.root


async def test_b5_a_gap_is_filled_from_two_sources(tmp_path: Path) -> None:
    """Each has one half of what is missing."""
    blocks = chain(40)
    async with source(tmp_path / "low", blocks[:21]) as low, source(tmp_path / "high", blocks[20:]) as high:
        sources = (low.address, high.address)
        async with served(tmp_path / "two", **QUICK, backfill_block_node_sources=sources) as two:
            await wait_ranges(two, (0, 39))
            status = await backfill_status(two.address)
            assert all(each.blocks for each in status.sources)
            assert status.blocks_stored == status.blocks_fetched == 40
