"""Goal: the page of forks shows the tree of a chain and its reorgs as they were.

Method: a chain that is pushed as messages of Cardinal Streams. Its forks and reorgs are known, for the test made them.
"""

from __future__ import annotations

import random
from pathlib import Path

from cardinal_streams.message.messages import Batch, encode
from stream_client import connect
from stream_node.doors.dashboard.blocks import ForkBlock, draw_tree, find_reorgs
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import http_node


def batch(name: str, number: int, parent: str, weight: int) -> Batch:
    return Batch(name.encode().ljust(32, b"."), number, parent.encode().ljust(32, b"."), weight)


CHAIN = (
    batch("a1", 1, "a0", 10),
    batch("a2", 2, "a1", 20),
    batch("a3", 3, "a2", 30),
    batch("b2", 2, "a1", 21),
    batch("b3", 3, "b2", 29),
    batch("b4", 4, "b3", 40),
    batch("b5", 5, "b4", 50),
    batch("c5", 5, "b4", 45),
)
"""The head is a3 until b4, which is heavier and leaves two blocks behind. c5 never is the head."""


def blocks(*batches: Batch) -> list[ForkBlock]:
    return [ForkBlock(each, number, (0, number)) for number, each in enumerate(batches)]


async def test_the_page_has_the_tree_and_the_reorg(tmp_path: Path) -> None:
    """Every block is drawn once and leads to its message; other messages in the stream do no harm."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as streams:
        stream = await streams.create("chain")
        await stream.push(b"no block")
        for each in (*CHAIN, CHAIN[0]):
            record = encode(each)
            await stream.push(record.value, key=record.key)
        page = await get(client, "/forks", stream="chain")
        assert [int(each["index"]) for each in page.links("/dashboard/message")] == list(range(1, 9))
        assert "8 blocks are in the last" in page.text
        shapes = [
            given["class"] for tag, given in page.tags if tag == "rect" and given.get("class") in ("best", "fork")
        ]
        assert shapes == ["best", "fork", "fork", "best", "best", "best", "best", "fork"]
        assert len([tag for tag, given in page.tags if given.get("class") == "edge"]) == 7
        assert "Blocks that left" in page.text
        (row,) = [turn for turn in find_reorgs(blocks(*CHAIN))]
        assert (row.block.batch, row.left, row.before.batch) == (CHAIN[5], 2, CHAIN[2])
        await streams.create("empty")
        assert "no block of Cardinal Streams" in (await get(client, "/forks", stream="empty")).text


def test_any_tree_is_drawn_without_overlaps() -> None:
    """No two boxes of a random tree are at one place, and each line begins at the box of the parent."""
    for seed in range(30):
        choose = random.Random(seed)
        made = [batch("0", 0, "none", 1)]
        for number in range(1, 80):
            parent = choose.choice(made[-6:])
            name = parent.hash.rstrip(b".").decode()
            made.append(batch(str(number), parent.number + 1, name, choose.randint(1, 500)))
        boxes = draw_tree(blocks(*made))
        assert len({(box.x, box.y) for box in boxes}) == len(boxes)
        at = {box.block.batch.hash: box for box in boxes}
        for box in boxes:
            if box.parent_x is not None:
                assert box.x < box.parent_x == at[box.block.batch.parent].x
        top = [box for box in boxes if box.is_best]
        assert {box.y for box in top} == {5}
    assert draw_tree([]) == []


def test_a_circle_of_parents_ends() -> None:
    """Blocks that name each other as parents, which only a wrong producer sends, do not keep the page busy."""
    wrong = blocks(batch("x", 1, "y", 1), batch("y", 2, "x", 2))
    assert len(draw_tree(wrong)) == 2
    assert find_reorgs(wrong) == []
