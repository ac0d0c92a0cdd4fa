"""Measures a node with blocks: published until verified and durable, read by a subscriber, and one of 100 MB."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from bench.plan import Plan
from bench.report import OURS, Sample, percentiles
from bench.servers.bench_node import BenchNode
from bench.works.block_publishing import TimedSession, publish_all
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.client import ItemsArrived, connect
from stream_client import connect as connect_streams

ITEMS_A_BLOCK: Final = (100, 1_000, 10_000)
LATENCY_BLOCKS: Final = 200
LARGE_ITEMS, LARGE_ITEM_BYTES = 100, 1_000_000
MEMORY_EVERY_S: Final = 0.02
PUBLISHED, ACKNOWLEDGED, CAUGHT_UP, LARGE = (
    "block: published until verified and durable",
    "block: from its end to its acknowledgement",
    "block: caught up with by a subscriber",
    "block: one of 100 MB, published, read and fetched",
)


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work. Their `window` is the number of items of a block; their `messages` are items, or blocks
    where single blocks are timed."""
    keys = SigningKeys.generate()
    for items in ITEMS_A_BLOCK:
        count = max(2, plan.messages // items)
        shape = BlockShape(item_count=items, item_bytes=plan.size_bytes)
        blocks = list(ChainGenerator(keys, shape=shape).blocks(count))
        for round_ in range(plan.rounds):
            yield from _through_a_node(round_, blocks, plan)
    yield _large(keys)


def _through_a_node(round_: int, blocks: Sequence[GeneratedBlock], plan: Plan) -> Iterator[Sample]:
    items = len(blocks[0].items)
    with BenchNode() as node:
        for work, action in ((PUBLISHED, publish_all), (CAUGHT_UP, _catch_up)):
            cpu_s = node.cpu_seconds()
            started_s = time.perf_counter()
            trio.run(action, node.address, blocks)
            yield Sample(
                work=work,
                system=OURS,
                round=round_,
                window=items,
                size_bytes=plan.size_bytes,
                messages=items * len(blocks),
                seconds=time.perf_counter() - started_s,
                server_cpu_s=node.cpu_seconds() - cpu_s,
                server_memory_bytes=node.memory_bytes(),
            )
    with BenchNode() as node:
        single = blocks[: min(LATENCY_BLOCKS, plan.single)]
        times_us = trio.run(_acknowledgements, node.address, single)
        found = percentiles(times_us)
        yield Sample(
            work=ACKNOWLEDGED,
            system=OURS,
            round=round_,
            window=items,
            size_bytes=plan.size_bytes,
            messages=len(single),
            seconds=sum(times_us) / 1e6,
            p50_us=found["p50_us"],
            p99_us=found["p99_us"],
            p999_us=found["p999_us"],
        )


async def _catch_up(address: str, blocks: Sequence[GeneratedBlock]) -> None:
    items = 0
    async with connect(address) as blocks_client, blocks_client.subscribe_events(0, len(blocks) - 1) as events:
        async for event in events:
            if isinstance(event, ItemsArrived):
                items += len(event.items)
    if items != sum(len(block.items) for block in blocks):
        raise RuntimeError(f"a subscriber got {items} items")


async def _acknowledgements(address: str, blocks: Sequence[GeneratedBlock]) -> list[float]:
    """Microseconds from the sending of each block's end to its acknowledgement; one block at a time."""
    async with connect_streams(address) as connection:
        session = TimedSession(connection)
        await session.open()
        return [(await session.publish(block)).from_end_us for block in blocks]


def _large(keys: SigningKeys) -> Sample:
    """One block of 100 MB in items of 1 MB.

    The memory is the most that the server has while the block is published, read by a subscriber, and fetched.
    """
    shape = BlockShape(item_count=LARGE_ITEMS + 4, item_bytes=LARGE_ITEM_BYTES)
    blocks = [ChainGenerator(keys, shape=shape).next_block()]

    async def run(node: BenchNode) -> int:
        async with memory_watched(node) as highest:
            await publish_all(node.address, blocks)
            await _catch_up_pieces(node.address)
            await _fetch(node.address)
        return highest[0]

    with BenchNode() as node:
        started_s = time.perf_counter()
        memory_bytes = trio.run(run, node)
        return Sample(
            work=LARGE,
            system=OURS,
            window=len(blocks[0].items),
            size_bytes=LARGE_ITEM_BYTES,
            messages=1,
            seconds=time.perf_counter() - started_s,
            server_memory_bytes=memory_bytes,
        )


async def _catch_up_pieces(address: str) -> None:
    size_bytes = 0
    async with connect(address) as blocks_client, blocks_client.subscribe_events(0, 0) as events:
        async for event in events:
            if isinstance(event, ItemsArrived):
                size_bytes += sum(map(len, event.items))
    if size_bytes < LARGE_ITEMS * LARGE_ITEM_BYTES:
        raise RuntimeError(f"a subscriber got {size_bytes} bytes")


async def _fetch(address: str) -> None:
    size_bytes = 0
    async with connect(address) as client:
        async for part in client.get_parts(0):
            size_bytes += len(part.data)
    if size_bytes < LARGE_ITEMS * LARGE_ITEM_BYTES:
        raise RuntimeError(f"a reader got {size_bytes} bytes")


@asynccontextmanager
async def memory_watched(node: BenchNode) -> AsyncIterator[list[int]]:
    """The most memory that the node has had since the beginning of the `with` block, as a list with one number."""
    highest = [node.memory_bytes()]

    async def watch() -> None:
        while True:
            highest[0] = max(highest[0], node.memory_bytes())
            await trio.sleep(MEMORY_EVERY_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield highest
        nursery.cancel_scope.cancel()
