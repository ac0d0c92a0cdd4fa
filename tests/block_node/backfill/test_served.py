"""Claim: between whole servers nothing is stored that is not tied to the chain, and each source does what it can.

Method: servers on real sockets and files in one process; a liar is a server with another, self-consistent chain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.block_node.backfill.served_blocks import (
    QUICK,
    backfill_status,
    chain,
    publish,
    ranges,
    source,
    wait_ranges,
)
from tests.block_node.client.chains import fetch
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
            assert "has root" in status.disagreements[0]
            assert await ranges(two.address) == [(20, 39)]
        settings["backfill_block_node_sources"] = (liar.address, f"{one.address}@1")
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 39))
            for block in blocks[:20]:
                assert (await fetch(two.address, block.number))[1] == block.root


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


@pytest.mark.parametrize("first_block", [0, 39], ids=["live tail", "history"])
async def test_blocks_that_do_not_fit_into_the_buffer_together(tmp_path: Path, first_block: int) -> None:
    """Requests are made smaller, nobody is blamed, and every block is counted once."""
    blocks = chain(40, item_count=8, item_bytes=100_000)
    async with source(tmp_path / "one", blocks) as one:
        settings: dict[str, Any] = QUICK | {"block_first": first_block}
        if first_block:
            async with source(tmp_path / "two", blocks[first_block:]):
                pass
        buffer = {"backfill_max_incoming_buffer_size": 4_000_000, "backfill_fetch_batch_size": 100}
        async with served(tmp_path / "two", **settings | buffer, backfill_block_node_sources=(one.address,)) as two:
            await wait_ranges(two, (0, 39))
            status = await backfill_status(two.address)
            assert status.blocks_stored == 40 - bool(first_block)
            assert (status.given_up, status.fetch_errors, status.sources[0].errors) == (0, 0, 0)


async def test_b7_what_retention_takes_away_is_not_fetched_again(tmp_path: Path) -> None:
    """Nor history that it would take away; but the chain is followed from where it stands, to its end."""
    blocks = chain(40)
    async with source(tmp_path / "one", blocks[:30]) as one:
        settings = QUICK | {"backfill_block_node_sources": (one.address,), "block_retention_blocks": 8}
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (22, 29))
            await publish(one.address, blocks[30:])
            await wait_ranges(two, (32, 39))
            scans = (await backfill_status(two.address)).scans
            with trio.fail_after(PATIENCE_S):
                while (status := await backfill_status(two.address, run=True)).scans < scans + 3:
                    await trio.sleep(0.01)
            assert (status.blocks_fetched, status.missing, status.given_up) == (40, 0, 0)
        async with source(tmp_path / "three", blocks[39:]):
            pass
        async with served(tmp_path / "three", **settings | {"block_first": 39}) as three:
            await wait_ranges(three, (32, 39))
            assert (await backfill_status(three.address)).blocks_fetched == 7


async def test_a_source_is_reached_through_another_node(tmp_path: Path) -> None:
    """One that has no blocks, and lets others through to the node that has; without leave they do not get there."""
    blocks = chain(20)
    async with source(tmp_path / "one", blocks) as one, served(tmp_path / "shut") as shut:
        async with served(tmp_path / "gate", allow_forward=(one.address,)) as gate:
            names = f"{shut.address}>{one.address}", f"{gate.address}>{one.address}@1"
            settings = QUICK | {"backfill_fetch_timeout_secs": 1.0, "backfill_block_node_sources": names}
            async with served(tmp_path / "two", **settings) as two:
                await wait_ranges(two, (0, 19))
                found = (await backfill_status(two.address)).sources
        assert [(each.name, each.blocks) for each in found] == [(names[0], 0), (names[1].removesuffix("@1"), 20)]
        assert found[0].errors


async def test_a_source_that_ends_in_the_middle_is_replaced(tmp_path: Path) -> None:
    """The better one goes in the middle of a run; the other one sends the rest, and nothing comes twice."""
    blocks = chain(240)
    async with source(tmp_path / "one", blocks) as one, source(tmp_path / "spare", blocks) as spare:
        sources = one.address, f"{spare.address}@1"
        settings = QUICK | {"backfill_block_node_sources": sources, "backfill_fetch_timeout_secs": 1.0}
        async with served(tmp_path / "two", **settings) as two:
            with trio.fail_after(PATIENCE_S):
                while (await backfill_status(two.address)).blocks_stored < 40:
                    await trio.lowlevel.checkpoint()
                one.server.stop()
            await wait_ranges(two, (0, 239))
            status = await backfill_status(two.address)
            assert status.blocks_stored == 240
            assert all(each.blocks for each in status.sources)
            assert status.sources[0].failures
