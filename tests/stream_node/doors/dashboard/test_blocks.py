"""Goal: the pages of blocks and of access show what is there and what was refused, with the reason, to those who may.

Method: real nodes; a chain of generated blocks is published over TCP with a hole and a damaged block.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
import trio

from block_node.client import BlockRefused
from block_node.client import connect as connect_blocks
from block_node.persist.ranges import BlockRanges
from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from stream_client import AccessDenied, connect
from stream_node.doors.dashboard.access_page import LINES_MAX, read_refusals
from stream_node.doors.dashboard.blocks import BARS_MAX, draw_ranges, find_gaps
from tests.block_node.client.chains import chain, outgoing
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node


def test_a_picture_shows_every_hole() -> None:
    """The bars are one row without a gap, a hole of one block in a million is seen, and neighbours are joined."""
    ranges = [(0, 400_000), (400_002, 999_999)]
    bars = draw_ranges(BlockRanges(ranges), BlockRanges(ranges), 0, 999_999)
    assert [bar.state for bar in bars] == ["there", "missing", "there"]
    assert bars[1].first <= 400_001 <= bars[1].last
    assert bars[0].x == 0
    assert sum(bar.width for bar in bars) == pytest.approx(1000)
    assert find_gaps(ranges) == [(400_001, 400_001)]
    many = BlockRanges((2 * number, 2 * number) for number in range(10_000))
    assert len(draw_ranges(many, many, 0, 19_998)) <= BARS_MAX
    assert [bar.state for bar in draw_ranges(BlockRanges([(5, 9)]), BlockRanges([(0, 9)]), 0, 9)] == [
        "deleted",
        "there",
    ]
    assert find_gaps([]) == []


def test_a_picture_agrees_with_the_blocks_one_by_one() -> None:
    """For random chains, each bar says what looking at each of its blocks says."""
    for seed in range(40):
        choose = random.Random(seed)
        there = {number for number in range(10, 2_000) if choose.random() < choose.choice((0.1, 0.99))}
        deleted = there | set(range(10, choose.randint(11, 1_500)))
        last = max(there)
        for bar in draw_ranges(_ranges(there), _ranges(deleted), min(deleted), last):
            blocks = set(range(bar.first, bar.last + 1))
            if bar.state == "there":
                assert blocks <= there
            elif bar.state == "deleted":
                assert blocks <= deleted
            else:
                assert not blocks <= deleted


def _ranges(numbers: set[int]) -> BlockRanges:
    return BlockRanges((number, number) for number in numbers)


def test_refusals_are_read_from_the_end_of_any_file(tmp_path: Path) -> None:
    """The newest refusals come first, whatever else is in the file; without a file there are none."""
    file = tmp_path / "audit.jsonl"
    assert read_refusals(file) == []
    lines = [json.dumps({"event": "refused", "identity": f"token:{number}"}) for number in range(10_000)]
    damaged = ["[" * 5_000, '{"event": "refused", "identity": "\udcff"}']
    text = "\n".join([*lines, '{"event": "admitted"}', "[1]", "no json", *damaged, ""])
    file.write_text(text, errors="surrogateescape")
    found = read_refusals(file)
    assert [each["identity"] for each in found] == [f"token:{number}" for number in range(9_999, 9_999 - LINES_MAX, -1)]
    assert found[0]["peer"] == "-"
    # Whoever is refused is shown, at whatever door it was; what the node itself did is not.
    doors = ("refused", "limited", "tls_refused_again", "http_refused", "token_refused", "channel_refused_more")
    events = (*doors, "admitted", "token_made", "tls_files_refused", "rules_loaded")
    file.write_text("\n".join(json.dumps({"event": each}) for each in events))
    assert [each["event"] for each in read_refusals(file)] == list(reversed(doors))


async def test_blocks_are_shown_with_the_reason_of_a_refusal(tmp_path: Path) -> None:
    """After four good blocks and a damaged one, the page has the range and the failed verification."""
    async with http_node(tmp_path) as node, node.client() as client:
        empty = await get(client, "/blocks")
        assert "There is no block yet." in empty.text
        async with connect_blocks(node.running.address) as blocks, blocks.publisher() as publisher:
            for block in chain(4):
                await publisher.send(outgoing(block))
            # The blocks are sent; the node may not have read them yet.
            with trio.fail_after(30):
                while "Newest offered" not in (await get(client, "/blocks")).text:
                    await trio.sleep(0.01)
        with pytest.raises((BlockRefused, ExceptionGroup)):
            async with connect_blocks(node.running.address) as blocks, blocks.publisher() as publisher:
                await publisher.send(outgoing(chain(6, seed=1)[4]))
        page = await get(client, "/blocks")
        assert "Last block 3 next 4" in page.text
        assert "4 bad_chain_link block 4 failed" in page.text
        (picture,) = [given for tag, given in page.tags if tag == "svg" and "ranges" in given.get("class", "")]
        assert picture["aria-label"] == "Blocks 0 to 3: 0 are missing"


async def test_the_page_of_access_has_rules_and_refusals(tmp_path: Path) -> None:
    """An operator sees who was refused what; others see nothing of it; a node without rules has no such page."""
    write_rules(tmp_path / "access.toml", [may(Right.OPERATE, who="token:watcher", name="<i>watches</i>")])
    text = create_token(tmp_path / "data" / "tokens.json", "watcher", int(time.time()))[0]
    settings = {"access_rules": str(tmp_path / "access.toml")}
    async with http_node(tmp_path, **settings) as node, node.client() as stranger, node.client(token=text) as watcher:
        async with connect(node.running.address) as streams:
            with pytest.raises(AccessDenied):
                await streams.create("<b>secret</b>")
        page = await get(watcher, "/access")
        for part in ("<i>watches</i>", "token:watcher", "create", "<b>secret</b>", "no rule allows it"):
            assert part in page.text
        closed = await get(stranger, "/access", 403)
        assert "watches" not in closed.text
        assert (await get(stranger, "/blocks", 403)).text
    async with http_node(tmp_path / "other", block_node=False) as node, node.client() as client:
        assert "has no rules" in (await get(client, "/access", 404)).text
        assert "no block node" in (await get(client, "/blocks", 404)).text
        assert "Blocks" not in (await get(client, "")).text
