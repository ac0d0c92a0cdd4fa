"""The pages of chains: stored blocks, their publishers and backfill; and the forks of a topic of Cardinal Streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import trio
from starlette.responses import Response

from block_node.persist.ranges import BlockRanges
from block_node.protocol_reading import STATUS, BlockRange, StatusRequest
from ockam.identity.rules.rights import Right
from stream_client import FromEnd, RichMessage
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.http.paging import pull_counted
from stream_node.doors.http.problems import Problem

if TYPE_CHECKING:
    from cardinal_streams.message.messages import Batch

GAPS_MAX = 50
RANGES_MAX = 2_000
"""The largest number of ranges that are drawn: the newest ones."""


async def show_blocks(page: DashboardPage) -> Response:
    parts = page.call.parts
    chain = parts.config.block_chain
    whole = parts.statistics()
    statistics = whole.services.blocks
    if statistics is None:
        reason = "this node is no block node (the setting block_node)"
        if parts.config.block_node:
            reason = "another node of the cluster serves the chain; look at the page of that node"
        raise Problem(404, "no-block-node", reason)
    page.need(OPERATOR | Right.BLOCK_READ | Right.BLOCK_PUBLISH, chain)
    async with page.client() as client:
        status = await client.session.ask("block_status", STATUS, StatusRequest(0, True))
    available = _pairs(status.detail.available) if status.detail else []
    stored = _pairs(status.detail.stored) if status.detail else []
    gaps = find_gaps(available)
    bars: list[Bar] = []
    if available:
        drawn, known = available[-RANGES_MAX:], stored[-RANGES_MAX:]
        bars = draw_ranges(BlockRanges(drawn), BlockRanges(known), min(drawn[0][0], known[0][0]), drawn[-1][1])
    return page.show(
        "blocks.html",
        chain=chain,
        reach=status,
        blocks=statistics,
        door=whole.grpc,
        bars=bars,
        gaps=gaps[-GAPS_MAX:],
        gap_count=len(gaps),
        missing=sum(last - first + 1 for first, last in gaps),
        # The names and addresses of other nodes are for operators.
        may_operate=page.may(OPERATOR, chain),
    )


def _pairs(ranges: list[BlockRange]) -> list[tuple[int, int]]:
    return [(each.first_block, each.last_block) for each in ranges]


BARS_MAX = 400


class Bar(NamedTuple):
    """A part of a picture of blocks, which is 1,000 units wide. first, last: its blocks. state: their worst state."""

    first: int
    last: int
    state: str
    x: float
    width: float


def draw_ranges(readable: BlockRanges, stored: BlockRanges, first: int, last: int) -> list[Bar]:
    """Returns the bars of the blocks from `first` to `last`: at most BARS_MAX parts, neighbours of one state joined.
    A part is "missing" if one of its blocks was never stored, so that even one missing block is visible."""
    count = last - first + 1
    step = max(1, -(-count // BARS_MAX))

    def state_of(start: int) -> str:
        end = min(last, start + step - 1)
        if not readable.missing(start, end):
            return "there"
        return "missing" if stored.missing(start, end) else "deleted"

    bars = []
    for state, same in groupby(range(first, last + 1, step), state_of):
        starts = list(same)
        begin, end = starts[0], min(last, starts[-1] + step - 1)
        bars.append(Bar(begin, end, state, 1000 * (begin - first) / count, 1000 * (end - begin + 1) / count))
    return bars


def find_gaps(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(before[1] + 1, after[0] - 1) for before, after in pairwise(ranges) if after[0] > before[1] + 1]


MESSAGES_MAX = 2_000
"""The largest number of messages that are read, of all partitions together."""
HEIGHTS_MAX = 60
"""The largest number of block numbers in the picture; the newest are drawn."""
STEP_X, STEP_Y, BOX_X, BOX_Y = 92, 44, 74, 28
REORGS_MAX = 50


class ForkBlock(NamedTuple):
    """A block and the location of its message: its partition and index."""

    batch: Batch
    time_us: int
    place: tuple[int, int]


class Box(NamedTuple):
    """A block in the picture. is_best: on the heaviest chain. parent_x, parent_y: the left side of its drawn parent."""

    block: ForkBlock
    x: int
    y: int
    is_best: bool
    parent_x: int | None
    parent_y: int | None


class HeadChange(NamedTuple):
    """A reorg: the new heaviest block, the number of blocks that left the heaviest chain, and its former head."""

    block: ForkBlock
    left: int
    before: ForkBlock


async def show_forks(page: DashboardPage) -> Response:
    name = page.get("stream")
    page.need(Right.READ, name)
    found: list[ForkBlock] = []
    async with page.client() as client:
        partitions = (await client.get_stream(name)).partitions[:MESSAGES_MAX]
        share = MESSAGES_MAX // len(partitions)
        for stream in partitions:
            at, read = await stream.find_index(FromEnd(share)), 0
            while read < share:
                some = await pull_counted(page.call.memory, stream, at, share - read)
                found += await trio.to_thread.run_sync(find_blocks, some.messages, stream.partition)
                at, read = some.resume_index, read + len(some.messages)
                if some.at_end:
                    break
    # Several producers send the same blocks. The first message of each block counts.
    by_hash: dict[bytes, ForkBlock] = {}
    for block in sorted(found, key=lambda block: block.time_us):
        by_hash.setdefault(block.batch.hash, block)
    blocks = list(by_hash.values())
    # A chain with many forks takes long, and the event loop has other work.
    boxes = await trio.to_thread.run_sync(draw_tree, blocks)
    reorgs = await trio.to_thread.run_sync(find_reorgs, blocks)
    return page.show(
        "forks.html",
        stream=name,
        count=len(blocks),
        boxes=boxes,
        width=max((box.x for box in boxes), default=0) + BOX_X + 10,
        height=max((box.y for box in boxes), default=0) + BOX_Y + 10,
        box=(BOX_X, BOX_Y),
        reorgs=reorgs[-REORGS_MAX:][::-1],
        most=MESSAGES_MAX,
    )


def find_blocks(messages: Iterable[RichMessage], partition: int) -> list[ForkBlock]:
    # The first such page loads the package, in the thread of this call.
    from cardinal_streams.errors import MessageError
    from cardinal_streams.message.messages import Batch, decode

    found = []
    for each in messages:
        try:
            message = decode(each.key or b"", each.data)
        except MessageError:
            continue
        if isinstance(message, Batch):
            found.append(ForkBlock(message, each.time_us, (partition, each.index)))
    return found


def find_reorgs(blocks: Iterable[ForkBlock]) -> list[HeadChange]:
    """Returns the reorgs. Each begins with a block that is heavier than all before it and no child of the heaviest.
    blocks: in the order of their arrival."""
    known: dict[bytes, ForkBlock] = {}
    head: ForkBlock | None = None
    turns = []
    for block in blocks:
        known[block.batch.hash] = block
        if head is None or block.batch.weight > head.batch.weight:
            if head is not None and block.batch.parent != head.batch.hash:
                chain = {each.batch.hash for each in _chain(block, known)}
                former = _chain(head, known)
                left = sum(each.batch.hash not in chain for each in former)
                # If earlier blocks of the new chain are unknown, nobody can say where the two chains part.
                if 0 < left < len(former):
                    turns.append(HeadChange(block, left, head))
            head = block
    return turns


def draw_tree(blocks: list[ForkBlock]) -> list[Box]:
    """Returns the boxes of the newest blocks, the newest on the left.
    The heaviest chain is in the first row. Each fork has a row of its own below it, as high up as there is room."""
    if not blocks:
        return []
    newest = max(block.batch.number for block in blocks)
    known = {block.batch.hash: block for block in blocks if block.batch.number > newest - HEIGHTS_MAX}
    best = {block.batch.hash for block in _chain(max(known.values(), key=lambda each: each.batch.weight), known)}
    rows: dict[bytes, int] = dict.fromkeys(best, 0)
    taken = {(known[hash_].batch.number, 0) for hash_ in best}
    for block in sorted(known.values(), key=lambda each: each.batch.number):
        if block.batch.hash in rows:
            continue
        number = block.batch.number
        # A fork stays in its row as long as this row is free.
        row = max(1, rows.get(block.batch.parent, 0))
        while (number, row) in taken:
            row += 1
        rows[block.batch.hash] = row
        taken.add((number, row))

    def place(hash_: bytes) -> tuple[int, int]:
        return 5 + STEP_X * (newest - known[hash_].batch.number), 5 + STEP_Y * rows[hash_]

    boxes = []
    for hash_, block in known.items():
        x, y = place(hash_)
        parent = place(block.batch.parent) if block.batch.parent in known else None
        parent_x, parent_y = (None, None) if parent is None else (parent[0], parent[1] + BOX_Y // 2)
        boxes.append(Box(block, x, y, hash_ in best, parent_x, parent_y))
    return boxes


def _chain(block: ForkBlock, known: dict[bytes, ForkBlock]) -> list[ForkBlock]:
    found = [block]
    # A chain that names one of its own blocks as a parent ends there.
    seen = {block.batch.hash}
    while (parent := known.get(found[-1].batch.parent)) is not None and parent.batch.hash not in seen:
        found.append(parent)
        seen.add(parent.batch.hash)
    return found
