"""Claim: an empty node takes no chain of which its sources have several, unless its operator decides; and a source with
another chain than the stored one is named, and nothing is fetched from it.

Method: whole servers; a liar is a server with another chain that passes every check by itself.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import structlog
import trio

from block_node.backfill.comparing import common_block
from block_node.blocks.generator import ADDRESS_BOOK_FILE, BlockShape, ChainGenerator, SigningKeys
from block_node.persist.ranges import BlockRanges
from tests.block_node.backfill.served_blocks import QUICK, backfill_status, chain, publish, ranges, source, wait_ranges
from tests.block_node.client.chains import fetch
from tests.support.blocks import signing_keys
from tests.support.served import PATIENCE_S, Served, served

TRUE, FALSE = chain(12), chain(12, seed=1)


async def wait_disagreements(running: Served, count: int) -> list[str]:
    with trio.fail_after(PATIENCE_S):
        while len(found := (await backfill_status(running.address)).disagreements) != count:
            await trio.sleep(0.05)
    return found


def test_the_block_that_is_compared_is_one_that_all_have() -> None:
    """Method: sets of numbers."""
    for seed in range(300):
        choose = random.Random(seed)
        numbers = [{each for each in range(12) if choose.random() < 0.6} for _ in range(choose.randint(1, 3))]
        common = set.intersection(*numbers)
        highest = max(common, default=None)
        wanted = highest - 1 if highest is not None and highest - 1 in common else highest
        assert common_block([BlockRanges((each, each) for each in sorted(some)) for some in numbers]) == wanted


async def test_an_empty_node_waits_for_its_operator_where_its_sources_disagree(tmp_path: Path) -> None:
    async with source(tmp_path / "one", TRUE) as one, source(tmp_path / "liar", FALSE) as liar:
        settings: dict[str, Any] = QUICK | {"backfill_block_node_sources": (liar.address, one.address)}
        async with served(tmp_path / "two", **settings) as two:
            with structlog.testing.capture_logs() as lines:
                found = await wait_disagreements(two, 2)
                scans = (await backfill_status(two.address)).scans
                with trio.fail_after(PATIENCE_S):
                    while (status := await backfill_status(two.address)).scans < scans + 3:
                        await trio.sleep(0.05)
            assert (status.blocks_fetched, status.is_unknown, await ranges(two.address)) == (0, True, [])
            assert "set block_known_roots=10:ROOT" in status.problem
            assert TRUE[10].root.hex()[:16] in found[0]
            assert FALSE[10].root.hex()[:16] in found[0]
            # It is told once, and not at each search.
            assert sum(line["event"] == "backfill_source_disagrees" for line in lines) <= 2
        # A root that the operator knows decides, and the other source stays named.
        known = f"3:{TRUE[3].root.hex()}"
        async with served(tmp_path / "two", **settings, block_known_roots=(known,)) as two:
            await wait_ranges(two, (0, 11))
            (named,) = await wait_disagreements(two, 1)
            assert named.startswith(f"{liar.address}: its block ")
            assert (await fetch(two.address, 11))[1] == TRUE[11].root
            sources = {each.name: each.blocks for each in (await backfill_status(two.address)).sources}
            assert sources == {liar.address: 0, one.address: 12}


async def test_an_address_book_decides(tmp_path: Path) -> None:
    """The other chain is signed by keys that the operator does not know."""
    signing_keys().save(tmp_path / "keys")
    stranger = ChainGenerator(SigningKeys.generate(2, 2048), shape=BlockShape(item_count=8), seed=2).blocks(12)
    async with source(tmp_path / "one", TRUE) as one, source(tmp_path / "liar", stranger) as liar:
        settings: dict[str, Any] = QUICK | {
            "backfill_block_node_sources": (liar.address, one.address),
            "block_address_book": str(tmp_path / "keys" / ADDRESS_BOOK_FILE),
            "block_levels": ("structure", "merkle", "chain", "record_proof"),
        }
        async with served(tmp_path / "two", **settings) as two:
            await wait_ranges(two, (0, 11))
            (named,) = await wait_disagreements(two, 1)
            assert named.startswith(liar.address)


async def test_a_source_that_begins_to_lie_is_named_at_the_next_search(tmp_path: Path) -> None:
    """Also while a publisher feeds the node and nothing is missing; it is named no longer when it is honest again."""
    async with served(tmp_path / "two", **QUICK, backfill_block_node_sources=("127.0.0.1:1",)) as probe:
        await publish(probe.address, TRUE[:8])
    async with source(tmp_path / "liar", FALSE) as liar:
        settings = QUICK | {"backfill_block_node_sources": (liar.address,)}
        async with served(tmp_path / "two", **settings) as two:
            (named,) = await wait_disagreements(two, 1)
            assert FALSE[6].root.hex()[:16] in named
            status = await backfill_status(two.address)
            assert (status.blocks_fetched, status.is_unknown) == (0, True)
            assert "its block 6 has root" in status.problem
